"""Whether an MP4 file is whole, told from the boxes it is made of: no frame is decoded.

The layout is that of ISO/IEC 14496-12, which MP4, M4A, MOV and 3GP files share: a file is a row of boxes,
each with its length (32 bits, big-endian) and its type (4 letters) in front.
"""

from typing import BinaryIO

# What a reader cannot do without. Other boxes may be anything, and what follows the last one too.
_INDEX, _CONTENT = b"moov", frozenset({b"mdat", b"moof"})
_HEADER = 8


def cut_short(stream: BinaryIO, size: int) -> str | None:
    """What an MP4 file lacks that breaks off; None for a whole one, and for a file of another format.

    Args:
        stream: at its beginning.
        size: of the file, in bytes.
    """
    seen = set[bytes]()
    start = 0
    while start + _HEADER <= size:
        stream.seek(start)
        header = stream.read(2 * _HEADER)
        length, kind = int.from_bytes(header[:4]), header[4:8]
        if not start and kind != b"ftyp":
            return None
        if length == 1:  # the length follows the type, in 64 bits
            length = int.from_bytes(header[8:16])
        elif not length:  # the last box, to the end of the file
            length = size - start
        if length < _HEADER:
            break
        if start + length > size and (kind == _INDEX or kind in _CONTENT):
            return f"its `{kind.decode()}` box ends at byte {start + length:,}, the file at {size:,}"
        seen.add(kind)
        start += length
    if seen and (_INDEX not in seen or _CONTENT.isdisjoint(seen)):
        lacking = "index (`moov`)" if _INDEX not in seen else "frames (`mdat`)"
        return f"it has no {lacking}"
    return None
