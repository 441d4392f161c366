"""The plots: lines with intervals, and bars, as Vega-Lite that is drawn the same in a browser and in a file.

Colours are named as the page's style sheet names them (``var(--c1)``): a browser follows the reader's light or dark
scheme without drawing again, and a file gets the light ones. Every series has a shape of its own besides a colour.
Which series are hidden is a parameter, ``hidden``, that the page's legend sets; a file has a legend inside instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

__all__ = [
    "EPOCHS",
    "Axis",
    "ChartBar",
    "ChartPoint",
    "Figure",
    "Key",
    "Style",
    "WaterfallBar",
    "bars",
    "by_count",
    "grid",
    "lines",
    "waterfall",
]

Style = Literal["solid", "dashed", "predicted"]
COLOURS = tuple(f"var(--c{number})" for number in range(1, 9))
QUIET = ("var(--quiet)", "var(--quiet-3)", "var(--quiet-2)")  # for what is there to compare with
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_DASHES = {"solid": [1, 0], "dashed": [5, 4], "predicted": [1, 4]}
_HEIGHT = 288
_PANEL_WIDTH, _PANEL_HEIGHT = 190, 130  # of one plot of a grid, in a file
# The title of its axis stands beside it: above it is the plot's name.
_BESIDE = {"domain": False, "ticks": False, "titleAngle": -90, "titleAlign": "center", "titleAnchor": "middle",
           "titleX": -40, "titleY": _PANEL_HEIGHT / 2, "titleBaseline": "bottom"}  # fmt: skip


class Axis(NamedTuple):
    """What an axis shows. ``format`` is d3's."""

    title: str
    format: str = "~s"
    scale: Literal["linear", "log", "symlog"] = "linear"
    base: int = 10
    zero: bool = False
    ticks: tuple[float, ...] = ()
    nice: bool = True
    whole: bool = False  # no tick between whole numbers
    label: str = ""  # of a tick, as an expression of Vega, instead of the format


class ChartPoint(NamedTuple):
    """A point of a series; ``note`` is said when it is pointed at. One that was predicted is hollow and its line
    dotted; with ``dot`` False it only begins a line."""

    series: str
    x: float
    y: float
    low: float = math.nan
    high: float = math.nan
    style: Style = "solid"
    note: str = ""
    dot: bool = True


class ChartBar(NamedTuple):
    """A bar, or a part of one: bars of one ``row`` stand after another."""

    row: str
    series: str
    value: float
    note: str = ""


class WaterfallBar(NamedTuple):
    """A bar of a waterfall, from where the one before it ended; ``whole`` ones begin at nothing."""

    row: str
    value: float
    text: str
    note: str = ""
    whole: bool = False


class Key(msgspec.Struct, frozen=True):
    """A line of the legend."""

    series: str
    colour: str
    shape: str  # of a point; "bar"
    style: Style = "solid"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A plot. ``name`` is that of its files, ``title`` stands above it and ``caption`` below the title."""

    name: str
    title: str
    caption: str = ""
    spec: dict[str, Any]
    keys: list[Key]
    worth: bool = True  # more than a single dot or bar, whose figure a table shows as well
    wide: bool = False  # takes the whole width of the page


EPOCHS = Axis("epoch", "~r", whole=True)


def by_count(title: str, points: Sequence[ChartPoint]) -> Axis:
    """An axis of counts, such as workers, which double from one to the next; with ticks at those that there are.

    >>> by_count("workers", [ChartPoint("a", 4, 0), ChartPoint("a", 1, 0), ChartPoint("b", 4, 0)]).ticks
    (1, 4)
    """
    return Axis(title, "d", "log", 2, ticks=tuple(sorted({point.x for point in points})))


def keys_of(series: Sequence[str], quiet: Sequence[str] = (), shape: str = "") -> list[Key]:
    """A colour and a shape for every series, in order; those that are ``quiet`` are grey and dashed.

    >>> [(key.colour, key.shape, key.style) for key in keys_of(["batch 32", "batch 64", "ideal"], ["ideal"])]
    [('var(--c1)', 'circle', 'solid'), ('var(--c2)', 'square', 'solid'), ('var(--quiet)', 'circle', 'dashed')]
    """
    loud = [name for name in series if name not in quiet]
    soft = [name for name in series if name in quiet]
    coloured = [
        Key(name, COLOURS[i % len(COLOURS)], shape or SHAPES[i % len(SHAPES)], "solid") for i, name in enumerate(loud)
    ]
    greys = ("var(--rule)",) if shape == "bar" else QUIET
    grey = [Key(name, greys[i % len(greys)], shape or SHAPES[i % len(SHAPES)], "dashed") for i, name in enumerate(soft)]
    return coloured + grey


def lines(
    name: str,
    title: str,
    points: Sequence[ChartPoint],
    x: Axis,
    y: Axis,
    *,
    caption: str = "",
    quiet: Sequence[str] = (),
    dots: bool = True,
) -> Figure:
    """A line a series through its points, with an interval where there is one. ``dots`` False shows a point only to
    who points at it, for lines of many."""
    import altair as alt

    x = _whole(x, points)
    keys = keys_of(list(dict.fromkeys(point.series for point in points)), quiet)
    rows = [
        {
            "series": point.series, "style": point.style, "x": _plain(point.x), "y": _plain(point.y),
            "low": _plain(point.low), "high": _plain(point.high), "note": point.note, "dot": point.dot,
        }
        for point in sorted(points, key=lambda point: point.series not in quiet) if math.isfinite(point.y)
    ]  # fmt: skip
    across = alt.X("x:Q", title=x.title, scale=_scale(x, padding=12), axis=_axis(x))
    up = alt.Y("y:Q", title=y.title, scale=_scale(y), axis=_axis(y))
    colour = alt.Color("series:N", title=None, scale=_named(keys, "colour"))
    shape = alt.Shape("series:N", title=None, scale=_named(keys, "shape"))
    tip = [alt.Tooltip("series:N", title=" "), alt.Tooltip("x:Q", title=x.title, format=x.format),
           alt.Tooltip("y:Q", title=y.title, format=y.format)]  # fmt: skip
    if any(math.isfinite(point.low) for point in points):
        tip += [alt.Tooltip("low:Q", title="from", format=y.format), alt.Tooltip("high:Q", title="to", format=y.format)]
    if any(point.note for point in points):
        tip.append(alt.Tooltip("note:N", title="note"))
    base = alt.Chart().encode(x=across, color=colour)
    drawn = [
        base.mark_rule(strokeWidth=1.5, opacity=0.55).encode(
            y=alt.Y("low:Q", title=y.title, scale=_scale(y), axis=_axis(y)), y2="high:Q"
        ).transform_filter("isValid(datum.low)"),
        base.mark_line(strokeWidth=2, interpolate="linear", strokeCap="round").encode(y=up, strokeDash=_dash()),
        base.mark_point(filled=True, size=64 if dots else 160, opacity=1.0 if dots else 0.0)
        .encode(y=up, shape=shape, tooltip=tip).transform_filter("datum.dot && datum.style !== 'predicted'"),
    ]  # fmt: skip
    if any(point.style == "predicted" for point in points):
        hollow = base.mark_point(size=64, fill="var(--paper)", strokeWidth=2, opacity=1.0)
        drawn.append(
            hollow.encode(y=up, shape=shape, tooltip=tip).transform_filter("datum.dot && datum.style === 'predicted'")
        )
    if all(not math.isfinite(point.low) for point in points):
        drawn = drawn[1:]
    return Figure(
        name=name,
        title=title,
        caption=caption,
        spec=_spec(alt.layer(*drawn, data=alt.Data(values=rows))),
        keys=keys,
        worth=len({point.x for point in points if point.series not in quiet and math.isfinite(point.y)}) > 1,
    )


def grid(
    name: str,
    title: str,
    panels: Mapping[str, Sequence[ChartPoint]],
    x: Axis,
    y: Axis,
    *,
    caption: str = "",
    quiet: Sequence[str] = (),
    columns: int = 3,
) -> Figure:
    """Small plots side by side, all with the same axes: one for each of ``panels``, whose name stands above it. The
    page makes them as wide as fits, and puts fewer than ``columns`` in a line on a narrow screen."""
    import altair as alt

    points = [point for mine in panels.values() for point in mine]
    x = _whole(x, points, 4)
    dashed = {point.series for point in points if point.style == "dashed"}
    keys = [
        msgspec.structs.replace(key, style="dashed" if key.series in dashed else "solid")
        for key in keys_of(list(dict.fromkeys(point.series for point in points)), quiet)
    ]
    rows = [
        {"panel": panel, "series": point.series, "style": point.style, "x": _plain(point.x), "y": _plain(point.y),
         "note": point.note}
        for panel, mine in panels.items() for point in mine if math.isfinite(point.y)
    ]  # fmt: skip
    base = alt.Chart().encode(
        x=alt.X("x:Q", title=x.title, scale=_scale(x, padding=6), axis=_axis(x, 3)),
        y=alt.Y("y:Q", title=y.title, scale=_scale(y), axis=_axis(y, 4)),
        color=alt.Color("series:N", title=None, scale=_named(keys, "colour")),
    )
    tip = [
        alt.Tooltip("panel:N", title=" "),
        alt.Tooltip("series:N", title="of"),
        alt.Tooltip("x:Q", title=x.title, format=x.format),
        alt.Tooltip("y:Q", title=y.title, format=y.format),
    ]
    layer = alt.layer(
        base.mark_line(strokeWidth=1.75, interpolate="linear", strokeCap="round").encode(strokeDash=_dash()),
        base.mark_point(filled=True, size=120, opacity=0.0, clip=True).encode(tooltip=tip),
    ).properties(width=_PANEL_WIDTH, height=_PANEL_HEIGHT)
    header = alt.Header(
        title=None, labelFontSize=12, labelFontWeight="bold", labelColor="var(--ink)", labelAnchor="start"
    )
    chart = layer.facet(
        facet=alt.Facet("panel:N", sort=list(panels), header=header), columns=columns, data=alt.Data(values=rows),
        spacing={"row": 22, "column": 18},
    )  # fmt: skip
    made = _hiding(chart).properties(autosize="pad").to_dict()
    return Figure(
        name=name,
        title=title,
        caption=caption,
        spec={**made, "config": {"axisY": _BESIDE}},
        keys=keys,
        worth=len(panels) > 1 and len({point.x for point in points if point.series not in quiet}) > 1,
        wide=True,
    )


def bars(
    name: str,
    title: str,
    parts: Sequence[ChartBar],
    value: Axis,
    *,
    caption: str = "",
    quiet: Sequence[str] = (),
    longest: float | None = None,
) -> Figure:
    """A horizontal bar a row, of the parts that are in it, in the order in which they are given."""
    import altair as alt

    series = list(dict.fromkeys(part.series for part in parts))
    rows = list(dict.fromkeys(part.row for part in parts))
    keys = [msgspec.structs.replace(key, style="solid") for key in keys_of(series, quiet, "bar")]
    places = {name: place for place, name in enumerate(series)}
    values = [
        {"row": part.row, "series": part.series, "value": part.value, "note": part.note, "place": places[part.series]}
        for part in parts if math.isfinite(part.value)
    ]  # fmt: skip
    scale = alt.Scale(domain=[0, longest], nice=False) if longest else alt.Scale(zero=True)
    tip = [alt.Tooltip("row:N", title=" "), alt.Tooltip("series:N", title="part"),
           alt.Tooltip("value:Q", title=value.title, format=value.format)]  # fmt: skip
    if any(part.note for part in parts):
        tip.append(alt.Tooltip("note:N", title="note"))
    chart = (
        alt.Chart(alt.Data(values=values))
        .mark_bar(height={"band": 0.68}, clip=True)
        .encode(
            y=alt.Y("row:N", title=None, sort=rows, axis=alt.Axis(labelLimit=170, ticks=False, domain=False)),
            x=alt.X("value:Q", title=value.title, scale=scale, stack="zero", axis=_axis(value)),
            color=alt.Color("series:N", title=None, scale=_named(keys, "colour")),
            order=alt.Order("place:Q"),
            tooltip=tip,
        )
    )
    height = min(640, max(72, 30 * len(rows)))
    return Figure(name=name, title=title, caption=caption, spec=_spec(chart, height), keys=keys, worth=len(values) > 1)


def waterfall(name: str, title: str, falls: Sequence[WaterfallBar], value: Axis, *, caption: str = "") -> Figure:
    """Bars that begin where the one before ended, each with its figure beside it. Values are shares of 1."""
    import altair as alt

    rows, at = [], 0.0
    for place, fall in enumerate(falls):
        begin, end = (0.0, fall.value) if fall.whole else (at, at + fall.value)
        at = at if fall.whole else end
        side = "after" if end < 0.72 else "before" if begin > 0.28 else "inside"
        colour = "var(--quiet-3)" if fall.whole else COLOURS[place % len(COLOURS)]
        rows.append(
            {"row": fall.row, "begin": begin, "end": end, "text": fall.text, "note": fall.note, "side": side,
             "colour": colour, "series": fall.row}
        )  # fmt: skip
    base = alt.Chart().encode(
        y=alt.Y("row:N", title=None, sort=[fall.row for fall in falls],
                axis=alt.Axis(labelLimit=120, ticks=False, domain=False)),
    )  # fmt: skip
    across = alt.X("begin:Q", title=value.title, scale=alt.Scale(domain=[0, 1], nice=False), axis=_axis(value))
    tip = [alt.Tooltip("row:N", title=" "), alt.Tooltip("text:N", title="takes"), alt.Tooltip("note:N", title="is")]
    drawn = [
        base.mark_bar(height={"band": 0.62}, minBandSize=2).encode(
            x=across, x2="end:Q", color=alt.Color("colour:N", scale=None, legend=None), tooltip=tip
        )
    ]
    sides: tuple[tuple[str, str, Literal["left", "right"], int], ...] = (
        ("after", "end:Q", "left", 6), ("before", "begin:Q", "right", -6), ("inside", "end:Q", "right", -6),
    )  # fmt: skip
    for side, edge, align, shift in sides:
        colour = "var(--paper)" if side == "inside" else "var(--ink)"
        drawn.append(
            base.mark_text(align=align, dx=shift, fontSize=12, color=colour)
            .encode(x=alt.X(edge), text="text:N")
            .transform_filter(f"datum.side === '{side}'")
        )
    return Figure(
        name=name,
        title=title,
        caption=caption,
        spec=_spec(alt.layer(*drawn, data=alt.Data(values=rows)), max(96, 34 * len(rows))),
        keys=[],
        worth=len(rows) > 1,
    )


def _whole(axis: Axis, points: Sequence[ChartPoint], most: int = 8) -> Axis:
    """The axis with ticks at whole numbers, if it wants them: Vega puts some between where there are few.

    >>> _whole(Axis("epoch", whole=True), [ChartPoint("a", 1, 0), ChartPoint("a", 3, 0)]).ticks
    (1, 2, 3)
    >>> _whole(Axis("epoch", whole=True), [ChartPoint("a", 1, 0), ChartPoint("a", 90, 0)]).ticks
    (20, 40, 60, 80)
    """
    known = [point.x for point in points if math.isfinite(point.x)]
    if not axis.whole or axis.ticks or not known:
        return axis
    low, high = math.ceil(min(known)), math.floor(max(known))
    step = next(
        size * 10**power for power in range(9) for size in (1, 2, 5, 10) if (high - low) < most * size * 10**power
    )
    return axis._replace(ticks=tuple(at for at in range(low, high + 1) if at % step == 0))


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _scale(axis: Axis, padding: int = 0) -> Any:
    """``padding`` keeps points off the other axis."""
    import altair as alt

    if axis.scale == "log":
        # A log scale of base 2 with nice bounds would reach to the next power: 3 workers to 4.
        return alt.Scale(type="log", base=axis.base, nice=axis.nice and not axis.ticks, padding=padding)
    return alt.Scale(type=axis.scale, zero=axis.zero, nice=axis.nice and not padding, padding=padding)


def _axis(axis: Axis, ticks: int = 6) -> Any:
    import altair as alt

    more: dict[str, Any] = {}
    if axis.ticks:
        more["values"] = list(axis.ticks)
    else:
        more["tickCount"] = min(4, ticks) if axis.scale == "log" else ticks
    if axis.label:
        more["labelExpr"] = axis.label
    if axis.whole:
        more["tickMinStep"] = 1
    return alt.Axis(format=axis.format, **more)


def _named(keys: Sequence[Key], attribute: str) -> Any:
    import altair as alt

    return alt.Scale(domain=[key.series for key in keys], range=[getattr(key, attribute) for key in keys])


def _dash() -> Any:
    """How a line is drawn that has a style."""
    import altair as alt

    return alt.StrokeDash("style:N", scale=alt.Scale(domain=list(_DASHES), range=list(_DASHES.values())), legend=None)


def _hiding(chart: Any) -> Any:
    """The chart without the series that are hidden."""
    import altair as alt

    return chart.add_params(alt.param("hidden", value=[])).transform_filter("indexof(hidden, datum.series) < 0")


def _spec(chart: Any, height: int = _HEIGHT) -> dict[str, Any]:
    """As plain data; altair checks it against Vega-Lite's schema."""
    made: Mapping[str, Any] = _hiding(chart).properties(width="container", height=height).to_dict()
    return {key: value for key, value in made.items() if key != "config"}
