"""The frames of SPDY/3.1 that ``kubectl port-forward`` uses inside its WebSocket.

There is no maintained Python library: browsers dropped SPDY in 2016. Pure: bytes in, frames out, and back.
kubectl and the API server use no flow control.

Source: https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

VERSION, CONTROL = 3, 0x8000
SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
DATA = 0
FIN = 1
HEADER = 8
REFUSED_STREAM = 3
LONGEST = 1 << 24
# Limits of one stream's headers: kubectl's have 100 bytes; the number is moby/spdystream's limit.
MAX_HEADER_BYTES, MAX_HEADERS = 1 << 14, 1000

_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language "
    "accept-ranges age allow authorization cache-control connection content-base content-encoding "
    "content-language content-length content-location content-md5 content-range content-type date etag "
    "expect expires from host if-match if-modified-since if-none-match if-range if-unmodified-since "
    "last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer "
    "retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate "
    "method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin"
)
_TEXT = (
    "1001012012022052063003023033043053063074024054064074084094104114124134144154164175025045052"
    "03 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


class ProtocolError(Exception):
    """The peer does not speak SPDY/3.1."""


@dataclass(frozen=True)
class SpdyFrame:
    """A frame: ``kind`` is DATA or a control frame's type; ``number`` that of a stream or ping."""

    kind: int
    number: int
    fin: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    data: bytes = b""


class SpdyFramer:
    """One end of a connection, with the header compression state of both directions."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> Iterator[SpdyFrame]:
        """Yield the frames completed by ``data``, those of unknown types without content."""
        self._received += data
        while len(self._received) >= HEADER:
            first, flags_length = struct.unpack_from(">II", self._received)
            flags, length = flags_length >> 24, flags_length & (LONGEST - 1)
            if len(self._received) < HEADER + length:
                return
            body = bytes(self._received[HEADER : HEADER + length])
            del self._received[: HEADER + length]
            if not first >> 31:
                yield SpdyFrame(DATA, first, bool(flags & FIN), data=body)
            elif first >> 16 != CONTROL | VERSION:
                raise ProtocolError(f"a frame of version {first >> 16 & 0x7FFF}")
            else:
                yield self._control(first & 0xFFFF, bool(flags & FIN), body)

    def _control(self, kind: int, fin: bool, body: bytes) -> SpdyFrame:
        if kind not in (SYN_STREAM, RST_STREAM, PING, GOAWAY):
            return SpdyFrame(kind, 0)
        try:
            (number,) = struct.unpack_from(">I", body)
            headers = self._headers(body[10:]) if kind == SYN_STREAM else {}
        except (struct.error, zlib.error) as error:
            raise ProtocolError(f"a broken frame of type {kind}: {error}") from error
        return SpdyFrame(kind, number, fin, headers)

    def _headers(self, block: bytes) -> dict[str, str]:
        text = self._inflate.decompress(block, MAX_HEADER_BYTES)
        if self._inflate.unconsumed_tail:
            raise ProtocolError(f"headers of more than {MAX_HEADER_BYTES} bytes")
        (count,) = struct.unpack_from(">I", text)
        if count > MAX_HEADERS:
            raise ProtocolError(f"{count} headers")
        texts, offset = [], 4
        for _ in range(2 * count):
            (length,) = struct.unpack_from(">I", text, offset)
            if offset + 4 + length > len(text):
                raise ProtocolError(f"a truncated header of {length} bytes")
            texts.append(text[offset + 4 : offset + 4 + length].decode(errors="replace"))
            offset += 4 + length
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def reply(self, stream: int) -> bytes:
        block = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control(SYN_REPLY, struct.pack(">I", stream) + block)


def data(stream: int, body: bytes, *, fin: bool = False) -> bytes:
    """Build a data frame; ``fin`` ends our half of the stream."""
    return struct.pack(">II", stream, (FIN if fin else 0) << 24 | len(body)) + body


def reset(stream: int, reason: int) -> bytes:
    return _control(RST_STREAM, struct.pack(">II", stream, reason))


def ping(number: int) -> bytes:
    return _control(PING, struct.pack(">I", number))


def _control(kind: int, body: bytes) -> bytes:
    return struct.pack(">HHI", CONTROL | VERSION, kind, len(body)) + body


def _dictionary() -> bytes:
    """The initial dictionary of the header compression, fixed by the specification."""
    words = [word.replace("_", " ").encode() for word in _WORDS.split()]
    return b"".join(struct.pack(">I", len(word)) + word for word in words) + _TEXT.encode()


DICTIONARY = _dictionary()
