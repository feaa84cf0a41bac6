"""Whether a cron expression names a time that comes."""

import re

_RANGES = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day of the month": (1, 31),
    "month": (1, 12),
    "day of the week": (0, 7),
}
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_LENGTHS = dict(zip(range(1, 13), (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))


def never_runs(cron: str) -> str | None:
    """What is wrong with a cron expression of five fields; None where it comes to pass.

    The last day of a month (`l`) and the n-th day of a week (`fri#2`) are taken as they are.
    """
    found = []
    for (field, (low, high)), text in zip(_RANGES.items(), cron.lower().split(), strict=True):
        values: set[int] | None = set()
        for item in text.split(","):
            numbers = _numbers(item, field, low, high)
            if isinstance(numbers, str):
                return numbers
            values = None if values is None or numbers is None else values | numbers
        found.append(values)
    days, months = found[2:4]
    if days and months and min(days) > max(_LENGTHS[month] for month in months):
        return f"{cron!r} never runs: no month that it names has a day {min(days)}"
    return None


def _numbers(item: str, field: str, low: int, high: int) -> set[int] | str | None:
    """The numbers of one item of a field, what is wrong with it, or None where that is not looked at."""
    if "#" in item or re.fullmatch(r"l|l-?\d+|\d+l", item):
        return None
    span, slash, step = item.replace("?", "*").partition("/")
    if slash and not (step.isdecimal() and int(step)):
        return f"`{item}` is no step of a {field}"
    if span == "*":
        return set(range(low, high + 1, int(step or 1)))
    names = {"month": _MONTHS, "day of the week": _DAYS}.get(field, [])
    first, dash, last = span.partition("-")
    ends = []
    for end in (first, last) if dash else (first,):
        if end in names:
            ends.append(names.index(end) + low)
        elif end.isdecimal() and end.isascii() and low <= int(end) <= high:
            ends.append(int(end))
        else:
            return f"`{item}` is no {field} ({low} to {high})"
    start, stop = ends[0], ends[-1] if dash or not slash else high
    if start > stop and dash:
        return set(range(start, high + 1)) | set(range(low, stop + 1))
    return set(range(start, stop + 1, int(step or 1)))
