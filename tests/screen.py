"""What a person sees of what a command sent to a terminal: what was drawn over is gone, colours are not text."""

from __future__ import annotations

import re

__all__ = ["screen"]

_PIECE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\].*?(?:\x07|\x1b\\)|([\r\n\b])|([^\x1b\r\n\b]+)|\x1b.?", re.DOTALL)


def screen(sent: str, columns: int = 80) -> str:
    r"""The text that is left, of a terminal that is long enough not to scroll.

    >>> screen("one\r\n 10 %\r\x1b[2K 20 %\r\n\x1b[1A\x1b[2Kdone\r\n")
    'one\ndone\n'
    >>> screen("abcdef", columns=4)
    'abcd\nef'
    """
    lines: list[list[str]] = [[]]
    row = column = 0
    for piece in _PIECE.finditer(sent.replace("\r\n", "\n").replace("\n", "\r\n")):
        number, command, move, text = piece.groups()
        if command:
            count = int(number) if number.isdigit() else 0
            if command == "A":
                row = max(0, row - (count or 1))
            elif command == "B":
                row += count or 1
            elif command == "G":
                column = max(0, count - 1)
            elif command == "K":
                start, end = (0, len(lines[row])) if count == 2 else (column, len(lines[row]))
                lines[row][start:end] = [" "] * (end - start) if count == 1 else []
            elif command == "J":
                lines[row][column:] = []
                del lines[row + 1 :]
        elif move == "\n":
            row += 1
        elif move == "\r":
            column = 0
        elif move == "\b":
            column = max(0, column - 1)
        for character in text or "":
            if column == columns:
                row, column = row + 1, 0
            while row >= len(lines):
                lines.append([])
            lines[row] += [" "] * (column + 1 - len(lines[row]))
            lines[row][column] = character
            column += 1
        while row >= len(lines):
            lines.append([])
    return "\n".join("".join(line).rstrip() for line in lines)
