"""Text files as people's programs write them: with a byte-order mark, or in UTF-16 with one."""

from __future__ import annotations

import codecs


def as_utf8(content: bytes) -> bytes:
    """The same text in UTF-8 without a byte-order mark. UTF-16 is recognized by its mark, and half a
    character at the end of the content becomes U+FFFD. Content without a mark is returned as it is."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", errors="replace").encode("utf-8", errors="replace")
    return content.removeprefix(codecs.BOM_UTF8)
