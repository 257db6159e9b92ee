"""A summary as lines, as a picture and as a page."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from rich.cells import cell_len

from trinity.summary import fonts
from trinity.summary.canvas import drawn
from trinity.summary.curves import StageCurves
from trinity.summary.facts import (
    OF_EVALUATION,
    OF_TENTHS,
    BestStep,
    Change,
    JobSummary,
    KeptCheckpoint,
    NextCommand,
)
from trinity.summary.page import MOST_CHARACTERS, page
from trinity.summary.picture import panel_of, panels_of, ticks
from trinity.summary.table import MOST_METRICS, command, summary_lines
from trinity.summary.words import CURVES, PARTS, TABLE, WORDS, is_chinese, reason_of

SCORE = "eval/held/accuracy/mean@1"
SUMMARY = JobSummary(
    schema=1,
    job="/jobs/run",
    stage=None,
    status="stopped",
    error="",
    training_step=8,
    explore_step=9,
    seconds=61.25,
    metrics=(
        Change(SCORE, 0.25, 0.5, OF_EVALUATION, 0, 8),
        Change("response_length/mean", 12345.0, 8, OF_TENTHS, 1, 9),
    ),
    best=BestStep(SCORE, 0.5, 8, 8, "/jobs/run/global_step_8"),
    checkpoints=(
        KeptCheckpoint(4, "/jobs/run/global_step_4", False),
        KeptCheckpoint(8, "/jobs/run/global_step_8", True),
    ),
    rollouts={"b": {"issued": 16, "trained": 9, "failed/timeout": 4, "filtered/own": 2, "stale": 0, "waiting": 1}},
    counts={"skipped_steps": 1},
    tokens={"generated": 12_000, "trained": None},
    time={"explore": 30.0, "train": 20.5},
    commands=(NextCommand("resume", "trinity resume /jobs/run"),),
    files=("report.html",),
    notes=("the reason",),
)
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
LEARNED = StageCurves(reward=[(1, 0.0), (2, 1.0)], evaluations={SCORE: [(0, 0.5)]}, length=[(1, 3.0), (2, 4.0)])
TAGS = {"html", "head", "meta", "title", "style", "body", "input", "label", "main", "section", "h1", "h2", "h3", "p"}
TAGS |= {"table", "thead", "tbody", "tr", "th", "td", "ul", "li", "span", "div", "code", "pre", "svg"}
TAGS |= {"polyline", "circle", "text"}


def test_the_lines_hold_every_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert [" ".join(line.split()) for line in summary_lines(SUMMARY)] == [
        "summary of jobs/run: stopped, training step 8, explore step 9, 61.2 s",
        "metric before after",
        f"{SCORE} 0.250 -> 0.500 evaluations at steps 0 and 8",
        "response_length/mean 1.234e+04 -> 8.000 first and last tenth of steps 1 to 9",
        f"best step 8, {SCORE} 0.500: jobs/run/global_step_8",
        "checkpoints 4, 8 (with Hugging Face weights): jobs/run/global_step_<N>",
        "rollouts 16 issued = 9 trained + 4 failed/timeout + 2 filtered/own + 0 stale + 1 waiting",
        "dropped 4 of 16: failed/timeout, not done before its deadline (explorer.max_timeout)",
        "2 of 16: filtered/own, left out by own",
        "also 1 optimizer steps skipped: their gradient was not finite",
        "time explore 30.0 s; train 20.5 s",
        "tokens 12,000 generated",
        "report jobs/run/report.html",
        f"next {command('trinity')} resume jobs/run # continue from the last checkpoint",
        "missing the reason",
    ]


@pytest.mark.parametrize(
    ("best", "words"),
    [
        (BestStep(SCORE, 0.5, 0, 0, None), "the initial model"),
        (BestStep(SCORE, 0.5, 3, 3, None), "the checkpoint of training step 3 is not kept"),
        (BestStep(SCORE, 0.5, 3, None, None), "its weights are not known"),
    ],
)
def test_a_best_step_without_a_checkpoint_says_why(best: BestStep, words: str) -> None:
    summary = replace(SUMMARY, best=best)
    assert any(line.endswith(words) for line in summary_lines(summary))
    assert words in page(summary, None, [], is_chinese=False)


def test_many_metrics_are_in_the_file_and_nothing_dropped_is_told() -> None:
    many = tuple(replace(SUMMARY.metrics[0], metric=f"eval/{i}/accuracy/mean@1") for i in range(MOST_METRICS + 3))
    nothing = {"b": {"issued": 2, "trained": 2, "waiting": 0}}
    lines = summary_lines(replace(SUMMARY, metrics=many, rollouts=nothing))
    assert "  and 3 more in summary.json" in lines
    assert any(line.split() == ["dropped", "nothing"] for line in lines)


def test_a_program_is_named_so_that_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    for name in ("python", "trinity"):
        (binaries / name).write_text("#!/bin/sh\n")
        (binaries / name).chmod(0o755)
    monkeypatch.setattr("sys.executable", str(binaries / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert command("trinity") == ".venv/bin/trinity"
    assert command("other") == "other"
    monkeypatch.setenv("PATH", str(binaries))
    assert command("trinity") == "trinity"


class Tags(HTMLParser):
    """Collects tags, attributes and the text in `<pre>`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.said = set[str](), dict[str, set[str]](), list[str]()
        self._is_pre = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._is_pre = tag == "pre"
        for name, value in attributes:
            self.attributes.setdefault(name, set()).add(value or "")

    def handle_endtag(self, tag: str) -> None:
        self._is_pre = False

    def handle_data(self, text: str) -> None:
        if self._is_pre:
            self.said.append(text)


def test_what_a_model_wrote_stays_text_wherever_it_stands() -> None:
    fates = {HOSTILE: {"issued": 1, f"filtered/{HOSTILE}": 1, "waiting": 0}}
    hostile = replace(
        SUMMARY, job=HOSTILE, stage=HOSTILE, status=HOSTILE, error=HOSTILE, rollouts=fates, notes=(HOSTILE,)
    )
    hostile = replace(
        hostile, metrics=(Change(HOSTILE, 0, 1, OF_TENTHS, 1, 2),), best=BestStep(HOSTILE, 1, 1, 1, HOSTILE)
    )
    hostile = replace(hostile, counts={HOSTILE: 1}, time={HOSTILE: 1.0}, commands=(NextCommand(HOSTILE, HOSTILE),))
    hostile = replace(hostile, checkpoints=(KeptCheckpoint(1, HOSTILE, True),))
    sample = {"prompt": HOSTILE, "response": HOSTILE, "truth": HOSTILE, HOSTILE: HOSTILE}
    curves = StageCurves(reward=[(1, 0.0), (2, 1.0)], evaluations={f"eval/{HOSTILE}/accuracy/mean@1": [(1, 0.5)]})
    found = Tags(page(hostile, panels_of(HOSTILE, curves), [sample], is_chinese=False))
    assert found.tags <= TAGS and not [name for name in found.attributes if name.startswith("on")]
    assert not {"src", "href"} & found.attributes.keys()
    assert found.said.count(HOSTILE) == 4  # prompt, response, truth and the command, as they were


def test_a_page_shows_the_language_of_its_reader_first_and_has_the_other() -> None:
    for chosen, other in (("en", "zh"), ("zh", "en")):
        text = page(
            SUMMARY, [], [{"prompt": "1+1=", "response": "x" * (MOST_CHARACTERS + 5)}], is_chinese=chosen == "zh"
        )
        assert f'id="{chosen}" checked' in text and f'id="{other}" checked' not in text
        assert WORDS["metrics"].en in text and WORDS["metrics"].zh in text and PARTS["explore"].zh in text
        assert reason_of("failed/timeout").zh in text and "被 own 略去" in text
        assert "… (+5)" in text and "default-src 'none'" in text and "http://" not in text


def test_the_language_is_that_of_the_first_variable_that_is_set() -> None:
    assert is_chinese({"LANG": "zh_CN.UTF-8"}) and is_chinese({"LC_ALL": "zh_TW", "LANG": "en_US.UTF-8"})
    assert not is_chinese({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}) and not is_chinese({})


def test_each_panel_of_a_picture_has_its_place() -> None:
    assert panel_of("rft", LEARNED).bounds == (0.0, 1.05)
    assert panel_of("rft", StageCurves(reward=[(1, -1.0)])).bounds is None
    assert panel_of("sft", StageCurves(loss=[(1, 2.0), (2, 0.5)])).is_log
    assert not panel_of("own", StageCurves(loss=[(1, 2.0), (2, -0.5)])).is_log
    assert panels_of("none", StageCurves()) == []
    content = drawn(panels_of("rft", LEARNED))
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    # The header holds the width: two panels of 600 pixels.
    assert int.from_bytes(content[16:20], "big") == 1200


def test_the_curve_of_a_page_is_in_both_languages_whatever_fonts_this_machine_has() -> None:
    text = page(SUMMARY, panels_of("作业", LEARNED), [], is_chinese=True)
    for word in (CURVES[name] for name in ("reward", "length", "tokens", "step")):
        assert f' lang="en">{word.en}</text>' in text and f' lang="zh">{word.zh}</text>' in text
    assert text.count(">作业</text>") == text.count(f">{SCORE}</text>") == 1, "a name is the same in both"
    lines = [[point.split(",") for point in each.split()] for each in re.findall(r'points="(.*?)"', text)]
    assert all(0 <= float(x) <= 1200 and 0 <= float(y) <= 432 for line in lines for x, y in line)
    curve = page(SUMMARY, panels_of("loss", StageCurves(loss=[(1, 2.0), (3, 1.0)])), [], is_chinese=True)
    assert f' lang="zh">{CURVES["loss"].zh}</text>' in curve
    (line,) = re.findall(r'points="([^"]*)"[^>]*stroke="#1f77b4" stroke-width="2"/>\n<text', curve)
    assert len(line.split()) == 2


FULL_BOX, HALF_BOX = ((0, 0), (0, 700), (900, 700), (900, 0)), ((0, 0), (0, 350), (900, 350), (900, 0))


def make_font(path: Path, characters: str) -> None:
    """Write a font in which each of the characters is half a box, and any other a whole one."""
    names = {each: f"u{ord(each):04X}" for each in characters}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", *names.values()])
    builder.setupCharacterMap({ord(each): name for each, name in names.items()})
    glyphs = {}
    for name in (".notdef", *names.values()):
        pen = TTGlyphPen(None)
        first, *others = FULL_BOX if name == ".notdef" else HALF_BOX
        pen.moveTo(first)
        for point in others:
            pen.lineTo(point)
        pen.closePath()
        glyphs[name] = pen.glyph()
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Test", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    path.parent.mkdir(parents=True, exist_ok=True)
    builder.save(path)


def test_a_picture_is_in_chinese_only_where_a_font_has_every_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panels, needed = panels_of("run", LEARNED), "".join(text.zh for text in CURVES.values())
    monkeypatch.setattr(fonts, "FOLDERS", (str(tmp_path / "none"),))
    english = drawn(panels)
    assert drawn(panels, is_chinese=True) == english
    for number, (name, characters) in enumerate({
        "wqy-lacking.ttf": needed[1:], "simhei.ttf": "", "NotoSansCJK-Regular.ttc": "", "Roman.ttf": needed
    }.items()):  # fmt: skip
        monkeypatch.setattr(fonts, "FOLDERS", (str(tmp_path / str(number)),))
        make_font(tmp_path / str(number) / "deep" / name, characters)
        assert drawn(panels, is_chinese=True) == english, name
    monkeypatch.setattr(fonts, "FOLDERS", (str(tmp_path / "0"), str(tmp_path / "4")))
    (tmp_path / "0" / "PingFang.ttc").write_bytes(b"no font")
    make_font(tmp_path / "4" / "NotoSansCJKsc-Regular.otf", needed)
    assert drawn(panels) == english
    chinese = drawn(panels, is_chinese=True)
    assert chinese != english and chinese[16:24] == english[16:24], "of the same size"


def test_a_name_is_shown_in_a_font_that_has_it_or_else_without_boxes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "FOLDERS", (str(tmp_path),))
    plain = fonts.Fonts(26, words=["步"])
    assert not plain.has_chinese
    assert plain.fit("run") == (plain.fit("x")[0], "run") and plain.fit("作业 1")[1] == "?? 1"
    make_font(tmp_path / "wqy-zenhei.ttf", "步作1 ")
    fonts._found.cache_clear()
    wide = fonts.Fonts(26, words=["步"])
    assert wide.has_chinese and wide.fit("run")[1] == "run" and wide.fit("作业 1")[1] == "作? 1"
    assert wide.fit("作")[0].getname() == ("Test", "Regular")


def test_ticks_are_round_and_few() -> None:
    assert ticks(0.0, 1.05) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(0, 3, least=1.0) == [0.0, 1.0, 2.0, 3.0]
    assert ticks(-0.3, 0.3) == [-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3]
    assert ticks(5, 5) == [5]


def test_the_lines_are_in_chinese_for_those_who_read_it_and_stand_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    lines = summary_lines(SUMMARY, is_chinese=True)
    assert lines[0] == "jobs/run 的摘要: 已停止, 训练步 8, 探索步 9, 61.2 s"
    told = "\n".join(lines)
    assert "{" not in told and "16 中的 4：failed/timeout，到期限仍未完成" in told and "# 从最近的检查点继续" in told
    # No English word is left over but the name of a fate.
    assert not [
        text.en for name, text in TABLE.items() if len(text.en) > 6 and name != "trained" and f" {text.en} " in told
    ]
    arrows = {cell_len(line[: line.index("->")]) for line in lines[2:4]}
    values = {cell_len(line[: re.match(r"  \S+ +", line).end()]) for line in lines[4:9] if re.match(r"  \S+ +", line)}
    assert len(arrows) == 1 and values == {16}, "what is two columns wide counts twice"
