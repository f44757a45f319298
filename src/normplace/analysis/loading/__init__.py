"""Models to audit: from a factory or a Hugging Face configuration."""
