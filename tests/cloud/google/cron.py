"""When a schedule is due: the five fields of cron. Pure."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def next_after(schedule: str, after: datetime, zone: str = "Etc/UTC") -> datetime:
    """Return the first moment later than ``after`` at which a schedule is due.

    Raises:
        ValueError: It is no schedule, or never due.

    Example:
        >>> next_after("30 13 22 11 *", datetime.fromisoformat("2026-11-22T09:00:00Z")).isoformat()
        '2026-11-22T13:30:00+00:00'
    """
    words = schedule.split()
    if len(words) != 5:
        raise ValueError(f"a schedule has five fields: {schedule!r}")
    minutes, hours, days, months, weekdays = (
        _values(word, *limits) for word, limits in zip(words, _RANGES, strict=True)
    )
    start = after.astimezone(ZoneInfo(zone)).replace(second=0, microsecond=0) + timedelta(minutes=1)
    for ahead in range(366 * 5):
        day = start + timedelta(days=ahead)
        by_date, by_weekday = day.day in days, day.isoweekday() % 7 in {each % 7 for each in weekdays}
        # cron's own oddity: with both given, one is enough
        fits = by_date or by_weekday if "*" not in (words[2], words[4]) else by_date and by_weekday
        if day.month not in months or not fits:
            continue
        for hour in sorted(hours):
            for minute in sorted(minutes):
                found = day.replace(hour=hour, minute=minute)
                if found >= start:
                    return found.astimezone(after.tzinfo)
    raise ValueError(f"this schedule is never due: {schedule!r}")


def _values(word: str, least: int, most: int) -> set[int]:
    found: set[int] = set()
    for part in word.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            first, last = least, most
        else:
            first, last = (int(each) for each in (span.split("-") if "-" in span else (span, span)))
        if not least <= first <= last <= most:
            raise ValueError(f"{word!r} is not within {least} to {most}")
        found |= set(range(first, last + 1, int(step or 1)))
    return found
