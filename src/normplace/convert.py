"""The former name of :mod:`normplace.edit`, which folders of saved Hugging Face models import."""

from normplace.edit import from_pretrained

__all__ = ["from_pretrained"]
