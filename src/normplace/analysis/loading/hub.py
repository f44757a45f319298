"""Configurations of models on the Hugging Face Hub.

Only ``config.json`` is downloaded, never code or weights. ``HF_ENDPOINT`` selects another host and ``HF_TOKEN``, or the
token of ``hf auth login``, unlocks gated models. ``HF_HUB_OFFLINE=1`` and ``NORMPLACE_OFFLINE=1`` forbid downloads.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException, HTTPMessage, IncompleteRead
from pathlib import Path
from typing import IO

from normplace._shared.cache import CACHE, cache_folder, offline_setting
from normplace._shared.output import write_atomic
from normplace.errors import UsageError

ENDPOINT = "https://huggingface.co"
FILE = "config.json"
SECONDS = 10.0
LARGEST = 10_000_000
"""Largest configuration in bytes; usual ones have a few thousand."""
WORD = r"[A-Za-z0-9](?:[\w.-]*\w)?"
HUB_ID = re.compile(rf"(?!.*(?:--|\.\.)){WORD}(?:/{WORD})?", re.ASCII)
GIT_HASH = re.compile(r"[0-9a-f]{40}")


class Unreachable(UsageError):
    """The Hub cannot be reached, or downloads are forbidden."""


def is_hub_id(name: str) -> bool:
    """Return whether a name has the form of a model's id.

    Example:
        >>> is_hub_id("google/gemma-2-2b"), is_hub_id("gpt2"), is_hub_id("./model"), is_hub_id("a/b/c")
        (True, True, False, False)
    """
    return len(name) <= 96 and HUB_ID.fullmatch(name) is not None


def fetch_config(model_id: str) -> tuple[Path, str | None]:
    """Download the configuration of a model into the cache.

    If the Hub cannot be reached, an earlier download is used, by this package or by ``huggingface_hub``.

    Returns:
        The file, and a note if it is an earlier download, else None.

    Raises:
        UsageError: If the model is unknown, gated or has no configuration, or the Hub cannot be reached and there is
            no earlier download.
    """
    path = cache_folder() / "hub" / model_id.replace("/", "--") / FILE
    try:
        content = _download(model_id)
    except Unreachable:
        earlier = path if path.is_file() else _huggingface_copy(model_id)
        if earlier is None:
            raise
        return earlier, f"The Hugging Face Hub is not used, so an earlier download of {model_id} was read."
    write_atomic(path, content, f"set {CACHE} to another folder")
    return path, None


def _huggingface_copy(model_id: str) -> Path | None:
    """The configuration in the cache of ``huggingface_hub``; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(model_id, FILE)
    return Path(file) if isinstance(file, str) else None


def _download(model_id: str) -> bytes:
    """The content of a model's configuration, compared with its checksum.

    Raises:
        UsageError: If it cannot be downloaded.
        Unreachable: If the Hub cannot be reached, or downloads are forbidden.
    """
    setting = offline_setting("HF_HUB_OFFLINE")
    if setting is not None:
        raise Unreachable(
            f"there is no file or folder {model_id}, and {setting} forbids downloads: pass a folder with {FILE}, or "
            "unset it."
        )
    request = _request(model_id)
    try:
        with urllib.request.build_opener(SameHostToken).open(request, timeout=SECONDS) as response:
            content = response.read(LARGEST + 1)
            if response.length and len(content) <= LARGEST:
                raise IncompleteRead(content, response.length)
            checksum = response.headers.get("ETag", "").removeprefix("W/").strip('"')
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(model_id, error.code, error.headers.get("X-Error-Code")) from error
    except (OSError, HTTPException) as error:
        reason = " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
        raise Unreachable(
            f"there is no file or folder {model_id}, and the Hugging Face Hub cannot be reached ({reason[:200]}): "
            f"check the name and the network, or pass a folder with {FILE}."
        ) from error
    if len(content) > LARGEST:
        raise UsageError(f"the {FILE} of {model_id} is larger than {LARGEST:,} bytes: it is not a configuration.")
    # The ETag of a small file is its hash in git, the SHA-1 of a header and the content.
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    if GIT_HASH.fullmatch(checksum) and blob.hexdigest() != checksum:
        raise UsageError(f"the {FILE} of {model_id} does not match its checksum: run the command again.")
    return content


def _request(model_id: str) -> urllib.request.Request:
    from huggingface_hub import get_token

    endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
    parts = urllib.parse.urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"HF_ENDPOINT is {endpoint!r}, which is not an address: set it to one such as {ENDPOINT}.")
    request = urllib.request.Request(f"{endpoint.rstrip('/')}/{model_id}/resolve/main/{FILE}")
    request.add_header("User-Agent", "normplace")
    request.add_header("Accept-Encoding", "identity")
    if (token := get_token()) is not None:
        request.add_header("Authorization", f"Bearer {token}")
    return request


class SameHostToken(urllib.request.HTTPRedirectHandler):
    """Follows redirects without sending the token to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request of the new address."""
        redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
        if redirected is not None and _origin(newurl) != _origin(req.full_url):
            redirected.remove_header("Authorization")
        return redirected


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def _refused(model_id: str, status: int, code: str | None) -> UsageError:
    """The error for an answer of the Hub that is not the file."""
    if code == "GatedRepo":
        return UsageError(
            f"{model_id} is gated: accept its terms on its page on the Hub, then set HF_TOKEN or run 'hf auth login'."
        )
    if code == "EntryNotFound":
        return UsageError(f"{model_id} has no {FILE} on the Hub: audit a factory that returns (model, inputs).")
    if status in (401, 403, 404):  # the Hub does not distinguish private models from unknown ones
        return UsageError(
            f"there is no file or folder {model_id}, and no public model of this name on the Hub: check the spelling, "
            "or set HF_TOKEN if it is private."
        )
    return UsageError(f"the Hugging Face Hub answered {status} for {model_id}: try again later.")
