"""Writes the numbers of core.h into the Python files that use them.

    python native/numbers.py            rewrite them
    python native/numbers.py --check    change nothing; exit 1 if something would change

Python does without the core where it is not built, so it cannot ask the core. Two comments mark what is written:

    ABI = 6  # core.h: HORA_ABI           a number; the comment may go on after a semicolon
    # core.h: enum trace TRACE_           the members of an enumeration, without that prefix, up to the next empty line
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NUMBER = re.compile(r"^(?P<name>\w+) = [^#\n]+?(?P<tail>  # core\.h: (?P<there>\w+))", re.M)
_ENUM = re.compile(r"^ +# core\.h: enum (?P<there>\w+) ?(?P<prefix>\w*)\n(?P<members>(?: +\w+ = [^\n]+\n)*)", re.M)


def read_header() -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Constants, each with the first value it is given (the second is the simulator's), and enumerations."""
    text = re.sub(r"/\*.*?\*/", "", (ROOT / "native" / "core.h").read_text(), flags=re.S)
    constants: dict[str, str] = {}
    for name, value in re.findall(r"\b([A-Z][A-Z_]+)(?: =|) (\d+(?: << \d+)?)", text):
        constants.setdefault(name, value)
    enums: dict[str, dict[str, int]] = {}
    for name, body in re.findall(r"enum (\w+) \{(.*?)\}", text, re.S):
        members = enums[name] = {}
        for item in filter(None, map(str.strip, body.split(","))):
            word, _, number = item.partition("=")
            members[word.strip()] = int(number) if number else len(members)
    enums["dtype"].pop("DTYPES")  # how many there are
    constants |= {name: str(number) for name, number in enums["rank_state"].items()}
    return constants, enums


def rewrite(text: str, constants: dict[str, str], enums: dict[str, dict[str, int]]) -> str:
    """What a file should be."""

    def members(found: re.Match[str]) -> str:
        head, _, _ = found[0].partition("\n")
        said = dict(re.findall(r"(\w+) = \d+(.*)\n", found["members"]))  # comments stay with their members
        lines = [head]
        for name, number in enums[found["there"]].items():
            name = name.removeprefix(found["prefix"])
            lines.append(f"    {name} = {number}{said.get(name, '')}")
        return "\n".join(lines) + "\n"

    def number(found: re.Match[str]) -> str:
        return f"{found['name']} = {constants[found['there']]}{found['tail']}"

    return _ENUM.sub(members, _NUMBER.sub(number, text))


def main(check: bool) -> list[str]:
    """The files that differ, which are rewritten unless ``check``."""
    header, different = read_header(), []
    for path in sorted((ROOT / "src" / "hora").rglob("*.py")):
        text = path.read_text()
        if "core.h: " in text and (wanted := rewrite(text, *header)) != text:
            different.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(wanted)
    return different


if __name__ == "__main__":
    found = main("--check" in sys.argv)
    print(*found, sep="\n", end="\n" * bool(found))
    sys.exit(bool(found) and "--check" in sys.argv)
