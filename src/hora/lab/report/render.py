"""The page and the files: templates filled, Vega put inside, plots drawn as SVG, PNG and PDF,
and written as CSV.

``page/`` has the template, the one style sheet and the one script. The page loads nothing: Vega comes out of
vl-convert, and a policy in the page's head forbids the browser to fetch anything.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from hora.errors import EnvironmentUnfit, UsageError
from hora.lab.report.charts import Figure

__all__ = ["as_csv", "check", "draw", "file_spec", "fill", "palette"]

_VARIABLE = re.compile(r"var\(--([\w-]+)\)")
_FILE_WIDTH, _PNG_SCALE = 640, 2.0
_FOR_DRAWING = ("dot", "place", "side", "colour")
# The marks of charts.SHAPES, around the middle of an icon of 28 by 16.
_ICONS = {
    "circle": "M14 3.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9z",
    "square": "M10 4h8v8h-8z",
    "triangle-up": "M14 3l5 9h-10z",
    "diamond": "M14 2.5l4.5 5.5l-4.5 5.5l-4.5-5.5z",
    "cross": "M12.5 3h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
    "triangle-down": "M14 13l5-9h-10z",
}


def _part(name: str) -> str:
    return files("hora.lab.report").joinpath("page", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def palette() -> dict[str, str]:
    """The light colours, by name, from the first block of the style sheet.

    >>> palette()["paper"], palette()["c1"]
    ('#ffffff', '#0072b2')
    """
    first = _part("page.css").partition("}")[0]
    return dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6});", first))


def _config(legend: Mapping[str, Any]) -> dict[str, Any]:
    """How all plots look: thin grid, small words, nothing around."""
    text = {"labelColor": "var(--ink-2)", "titleColor": "var(--ink-2)", "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": "transparent",
        "font": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif",
        "view": {"stroke": None},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 0, "top": 6, "right": 8, "bottom": 4},
        "axis": {
            **text, "titleFontWeight": "normal", "titlePadding": 10, "labelPadding": 6, "gridColor": "var(--grid)",
            "domainColor": "var(--rule)", "tickColor": "var(--rule)", "labelFlush": False, "labelOverlap": "greedy",
        },
        "axisY": {"domain": False, "ticks": False, "titleAlign": "left", "titleAnchor": "end", "titleAngle": 0,
                  "titleX": 0, "titleY": -12, "titleBaseline": "bottom"},
        "axisX": {"grid": False},
        "legend": legend,
    }  # fmt: skip


LIVE = _config({"disable": True})  # the page has its own, that can be pressed
IN_FILE = _config(
    {"orient": "top", "columns": 2, "labelColor": "var(--ink)", "labelFontSize": 12, "labelLimit": 290,
     "symbolStrokeWidth": 2, "symbolOpacity": 1, "offset": 26, "title": None}
)  # fmt: skip


def fill(values: Mapping[str, Any], figures: Sequence[Figure]) -> str:
    """The whole page. ``values`` are the template's."""
    import jinja2
    from markupsafe import Markup

    def as_json(value: Any) -> Markup:
        # Inside a script nothing is escaped, but "</" would end it.
        return Markup(msgspec.json.encode(value).decode().replace("<", "\\u003c"))

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_bound
    )
    environment.filters["json"] = as_json
    environment.filters["code"] = _code
    library = _library() if figures else ""
    return environment.from_string(_part("page.html")).render(
        **values,
        style=Markup(_part("page.css")),
        script=Markup(_part("page.js")),
        library=Markup(library),
        config=LIVE,
        shapes=_ICONS,
        figures=figures,
    )


@lru_cache(maxsize=1)
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed, as one script."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")


def _code(text: str) -> Any:
    """What stands between backticks is a command or a name.

    >>> str(_code("see `hora doctor` & <log>"))
    'see <code>hora doctor</code> &amp; &lt;log&gt;'
    """
    from markupsafe import Markup, escape

    parts = [str(escape(_bound(part))) for part in text.split("`")]
    if len(parts) % 2 == 0:  # one that is not closed
        return escape(_bound(text))
    return Markup("".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts)))


def _bound(value: Any) -> Any:
    """A number and its unit stay on one line."""
    return re.sub(r"(?<=\d) (?=%|ms\b|s\b|GB\b|MB\b|images/s)", "\u00a0", value) if type(value) is str else value


def file_spec(figure: Figure) -> dict[str, Any]:
    """A figure as it is drawn into a file: its width known, light colours, title and legend inside."""
    colours = palette()
    title = {"text": figure.title, "anchor": "start", "offset": 16, "fontSize": 15, "color": "var(--ink)"}
    whole = {
        **figure.spec,
        "title": title,
        **({} if "facet" in figure.spec else {"width": _FILE_WIDTH}),
        "background": colours["paper"],
        "padding": 20,
        "config": {key: value for key, value in IN_FILE.items() if key not in ("background", "padding", "autosize")}
        | ({"legend": {"disable": True}} if len(figure.keys) < 2 else {})
        | figure.spec.get("config", {}),
    }
    text = _VARIABLE.sub(lambda match: colours[match[1]], msgspec.json.encode(whole).decode())
    made: dict[str, Any] = msgspec.json.decode(text)
    return made


def draw(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Write every figure as SVG, PNG and PDF, and what it shows as CSV; the files, in order."""
    import vl_convert

    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            svg = vl_convert.vegalite_to_svg(file_spec(figure))
            drawings = {
                ".svg": svg.encode(), ".png": vl_convert.svg_to_png(svg, scale=_PNG_SCALE),
                ".pdf": vl_convert.svg_to_pdf(svg), ".csv": as_csv(figure).encode(),
            }  # fmt: skip
            for suffix, data in drawings.items():
                path = folder / f"{figure.name}{suffix}"
                path.write_bytes(data)
                written.append(path)
    except OSError as error:
        raise UsageError(f"--plots {folder} cannot be written: {error.strerror}. Give another folder.") from None
    return written


def as_csv(figure: Figure) -> str:
    """The values of a figure, a line each. Columns that are empty throughout are left out.

    >>> from hora.lab.report.charts import Axis, ChartPoint, lines
    >>> print(as_csv(lines("a", "A", [ChartPoint("one", 1, 2.5)], Axis("x"), Axis("y"))), end="")
    series,style,x,y
    one,solid,1,2.5
    """
    values: list[dict[str, Any]] = figure.spec["data"]["values"]
    names = [
        name for name in dict.fromkeys(key for value in values for key in value)
        if name not in _FOR_DRAWING and any(value.get(name) not in (None, "") for value in values)
    ]  # fmt: skip
    file = io.StringIO()
    writer = csv.DictWriter(file, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(values)
    return file.getvalue()


def check() -> None:
    """Refuse at once what would fail for want of a package."""
    missing = [name for name in ("altair", "jinja2", "vl_convert") if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentUnfit(
            f"a report needs {' and '.join(missing)}, which is not installed. Run 'pip install hora[lab]'."
        )
