"""A picture that looks like a QR code, for pages that show one. No phone can read it: there is nothing to pair with."""

import base64
import hashlib
import struct
import zlib

SIDE = 33
QUIET = 4  # cells of white around it
CELL = 8  # pixels
_FINDERS = ((0, 0), (0, SIDE - 7), (SIDE - 7, 0))


def value(session: str, number: int) -> str:
    """What a code says, in the form of WhatsApp's."""
    parts = [hashlib.sha256(f"{session} {number} {part}".encode()).digest() for part in range(4)]
    return "2@" + ",".join(base64.b64encode(part).decode() for part in parts)


def picture(text: str) -> bytes:
    """A PNG, black on white; another one for another text."""
    cells = _cells(text)
    white = bytes((SIDE + 2 * QUIET) * CELL)
    rows = [white] * (QUIET * CELL)
    for row in cells:
        padded = [False] * QUIET + row + [False] * QUIET
        rows += [bytes(dark for dark in padded for _ in range(CELL))] * CELL
    rows += [white] * (QUIET * CELL)
    return _png([bytes(0 if dark else 255 for dark in row) for row in rows])


def _cells(text: str) -> list[list[bool]]:
    noise = b"".join(hashlib.sha256(f"{number} {text}".encode()).digest() for number in range(SIDE * SIDE // 256 + 1))
    cells = [[bool(noise[(y * SIDE + x) // 8] >> ((y * SIDE + x) % 8) & 1) for x in range(SIDE)] for y in range(SIDE)]
    for place in range(8, SIDE - 8):
        cells[6][place] = cells[place][6] = place % 2 == 0
    for top, left in _FINDERS:
        for y in range(-1, 8):
            for x in range(-1, 8):
                if 0 <= top + y < SIDE and 0 <= left + x < SIDE:
                    ring = max(abs(y - 3), abs(x - 3))
                    cells[top + y][left + x] = ring in (0, 1, 3)
    return cells


def _png(rows: list[bytes]) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    size = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)  # 8 bits of grey
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
