"""The report: one page that says what it should, and that a browser shows as it should."""

import json
import re
import shutil
import subprocess
import sys
from html import escape, unescape

import numpy as np
import pandas as pd
import polars as pl
import pytest

from emflow import EMFlowError, EMFlowImputer, FileError, GaussianImputer, evaluate
from emflow.evaluation import hide_and_fit
from emflow.plot.canvas import percent
from emflow.report import FIT_SECONDS, sections, write_report

BAD = "<script>alert('x')</script> & co"
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--enable-logging=stderr",
    "--v=0",
]  # fmt: skip
LOOK = """<!DOCTYPE html><body><iframe style="border: 0; width: {width}px; height: 900px" srcdoc="{page}"></iframe>
<script>
addEventListener("load", () => {
    const {contentDocument: page, contentWindow: view} = document.querySelector("iframe");
    const size = e => e.tagName == "IMG" ? e.naturalWidth : Math.min(e.clientWidth, e.clientHeight);
    const isBeyond = e => e.closest(".scroll") === null && e.getBoundingClientRect().right > view.innerWidth + 1;
    const found = {
        width: view.innerWidth,
        page: page.documentElement.scrollWidth,
        pictures: [...page.querySelectorAll("img, svg")].map(size),
        beyond: [...page.querySelectorAll("body *")].filter(isBeyond).map(e => e.tagName),
    };
    document.body.textContent = "FOUND" + JSON.stringify(found) + "END";
});
</script>"""


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    z = rng.normal(size=240)
    frame = pd.DataFrame({
        "height": z + 0.1 * rng.normal(size=240),
        "noise": rng.normal(size=240),
        BAD: np.array(["<b>one</b>", "two", "three"], dtype=object)[np.digitize(z, [-0.5, 0.5])],
        "day": pd.Timestamp("2020-01-01") + pd.to_timedelta((100 * z).round(), unit="D"),
        "whole": z,
        "row": np.arange(240),
    })  # fmt: skip
    for name, share in {"height": 0.3, "noise": 0.2, BAD: 0.15, "day": 0.1}.items():
        frame.loc[rng.random(240) < share, name] = None
    return frame


@pytest.fixture(scope="module")
def page(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    with pytest.warns(UserWarning, match="'row'"):
        write_report(frame, path, GaussianImputer(random_state=7), title=f"Table {BAD}", random_state=3)
    return path


@pytest.fixture(scope="module")
def text(page):
    return page.read_text(encoding="utf-8")


def part(text, heading):
    return text.partition(f"<h2>{heading}</h2>")[2].partition("</section>")[0]


def rows(text):
    """Rows of all tables, as lists of the text in their cells."""
    lines = re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall("<t[dh][^>]*>(.*?)</t[dh]>", line)] for line in lines]


def test_numbers_at_the_top_are_those_of_the_table(frame, text):
    missing = frame.isna().to_numpy()
    head = text.partition("<header>")[2].partition("</header>")[0]
    assert "A table of 240 rows and 6 columns, filled by GaussianImputer." in head
    assert f"<b>{missing.mean():.0%}</b>".replace("%", " %") in head
    assert f"of the cells are missing: {missing.sum()} of {missing.size:,}" in head
    assert f"of the rows are complete: {(~missing.any(1)).sum()} of 240" in head
    assert "<b>3 of 4</b>" in head


def test_what_is_missing_is_listed_from_most_to_least(frame, text):
    found = rows(part(text, "What is missing"))[1:]
    assert [row[0] for row in found[:2]] == ["height", "noise"]
    assert found[0][2] == str(frame["height"].isna().sum())
    assert "4 of 6 columns have holes" in text
    assert 'aria-label="patterns of missing cells"' in text


def test_scores_are_those_of_evaluate(frame, text):
    found = {row[0]: row for row in rows(part(text, "How well each column can be filled"))}
    with pytest.warns(UserWarning, match="'row'"):
        evaluation = evaluate(frame, GaussianImputer(random_state=7), random_state=3)
    scores = {score.column: score for score in evaluation.scores}
    assert found["height"][3:5] == [f"{scores['height'].value:.4g}", f"{scores['height'].simple['mean']:.4g}"]
    assert found["height"][1] == "better"
    assert found["noise"][1] == f"{scores['noise'].as_good} does as well"
    assert f'<p class="verdict">{evaluation.verdict}</p>' in text
    assert "accuracy" in str(found)


def test_each_column_with_holes_is_drawn(text):
    found = part(text, "Observed and imputed values")
    assert found.count("<svg") == 4
    assert "not shown" not in found


def test_worst_cells_have_their_interval(frame, text):
    found = rows(part(text, "Cells not to trust"))
    assert ["noise", str(frame["noise"].isna().sum())] == found[1][:2]
    assert float(found[1][2]) > 2.5
    cells = [row for row in found if len(row) == 5 and row[0] == "noise"]
    with pytest.warns(UserWarning, match="'row'"):
        used = hide_and_fit(frame, GaussianImputer(random_state=7), random_state=3).imputer
    low, high = (end["noise"].to_numpy() for end in used.intervals(frame))
    assert [int(row[1]) for row in cells] == np.argsort(low - high, kind="stable")[:3].tolist()
    for row in cells:
        low, high = map(float, row[3].split(" to "))
        assert low < float(row[2]) < high
        assert (high - low) / frame["noise"].std() == pytest.approx(float(row[4]), rel=0.05)
    assert any(row[3].count("20") == 2 for row in found if len(row) == 5 and row[0] == "day")
    likely = [row[3] for row in found if len(row) == 4 and row[3].endswith("%")]
    probability = used.probabilities(frame)[BAD].max(1)[frame[BAD].isna()]
    assert likely == [percent(share) for share in np.sort(probability)[:3]]


def test_the_end_says_how_it_was_made(text):
    facts = {row[0]: row[1] for row in rows(part(text, "How this was made"))[1:]}
    assert (facts["seed of the hidden cells"], facts["seed of the imputer"]) == ("3", "7")
    assert re.fullmatch(r"\d+\.\d", facts["seconds in all"])
    assert facts["emflow-impute"]
    assert facts["n_iterations"] == "100"
    assert "One fit serves for all" in text


def test_text_of_the_data_is_escaped(text):
    assert "<script" not in text
    assert "<b>one" not in text
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; co" in text
    assert "<title>Table &lt;script" in text


def test_the_page_needs_nothing_beside_itself(text):
    assert "http" not in text
    assert not re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!["']?#)""", text)
    ids = re.findall(' id="([^"]*)"', text)
    assert not [name for name in ids if re.search(r"_\d+$", name)]  # as matplotlib names groups in each picture


def test_many_columns_are_counted_not_shown(monkeypatch, frame, tmp_path):
    monkeypatch.setattr(sections, "DRAWN", 1)
    monkeypatch.setattr(sections, "LISTED", 3)
    write_report(frame[["height", "noise", "day", BAD, "whole"]], tmp_path / "few.html", GaussianImputer())
    text = (tmp_path / "few.html").read_text(encoding="utf-8")
    assert part(text, "Observed and imputed values").count("<svg") == 1
    assert "3 columns with fewer holes are not shown" in part(text, "Observed and imputed values")
    assert "1 column with fewer holes is not shown" in part(text, "What is missing")


def test_a_fitted_imputer_fills_the_holes_itself(frame, tmp_path):
    given = pl.from_pandas(frame[["height", "whole"]])
    imputer = GaussianImputer(random_state=0).fit(given)
    write_report(given, tmp_path / "fitted.html", imputer)
    text = (tmp_path / "fitted.html").read_text(encoding="utf-8")
    assert "The imputer came fitted" in text
    row = rows(part(text, "Cells not to trust"))[-1]
    assert float(row[2]) == pytest.approx(imputer.transform(given)["height"][int(row[1])], rel=1e-3)


def test_arrays_with_nothing_missing_and_emflow(tmp_path, capsys):
    X = np.random.default_rng(0).normal(size=(150, 1)) + np.random.default_rng(1).normal(size=(150, 3))
    imputer = EMFlowImputer(n_iterations=1, n_epochs=1, random_state=0)
    write_report(X, tmp_path / "whole.html", imputer, verbose=True)
    text = (tmp_path / "whole.html").read_text(encoding="utf-8")
    assert "Nothing: every cell has a value." in text
    assert "Cells not to trust" not in text
    assert "Of 1 outer iteration" in text
    assert "report: evaluate" in capsys.readouterr().err
    assert not hasattr(imputer, "stages_")
    assert imputer.verbose is False


def test_a_page_is_written_whole_or_not_at_all(monkeypatch, frame, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    given = frame[["height", "whole"]]
    with pytest.raises(FileError, match="overwrite it with --force"):
        write_report(given, path, GaussianImputer())
    with pytest.raises(FileError, match="no such folder"):
        write_report(given, tmp_path / "none" / "report.html", GaussianImputer())
    with pytest.raises(FileError, match="is a folder"):
        write_report(given, tmp_path, GaussianImputer(), force=True)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(EMFlowError, match="need matplotlib"):
            write_report(given, path, GaussianImputer(), force=True)
    with pytest.raises(UnicodeEncodeError):
        write_report(given, path, GaussianImputer(), title="\ud800", force=True)
    assert path.read_text() == "old"
    write_report(given, path, GaussianImputer(), force=True)
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    assert list(tmp_path.iterdir()) == [path]


# --- in a browser


def look(path, width, folder):
    """Return what Chromium finds on a page at a width, and what it says on its console.

    The page is in a frame of that width: windows are 500 pixels wide at the least.
    """
    frame = folder / f"{width}.html"
    text = LOOK.replace("{width}", str(width)).replace("{page}", escape(path.read_text(encoding="utf-8")))
    frame.write_text(text, encoding="utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--dump-dom"]
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = re.search("FOUND(.*)END</body>", done.stdout)
    assert found, done.stderr
    return json.loads(unescape(found[1])), [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page is not looked at")


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_all_of_the_page(page, width, tmp_path):
    found, said = look(page, width, tmp_path)
    assert found["width"] == width
    assert found["page"] <= width
    assert found["beyond"] == []
    assert len(found["pictures"]) == 7
    assert min(found["pictures"]) > 150
    assert said == []


@needs_chromium
def test_a_browser_sees_what_is_wrong_with_a_page(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<body><img src='none.png'><p style='width:900px'>wide</p><script>console.error('oh')</script></body>"
    )
    found, said = look(bad, 390, tmp_path)
    assert found["page"] == 908
    assert found["beyond"] == ["P"]
    assert found["pictures"] == [0]
    assert any("oh" in line for line in said)


def test_the_fit_to_a_long_table_has_an_end(monkeypatch, frame, tmp_path):
    asked = []

    def stop(X, imputer, *, random_state):
        asked.append(imputer)
        raise KeyboardInterrupt

    monkeypatch.setattr("emflow.report.write.hide_and_fit", stop)
    with pytest.raises(KeyboardInterrupt):
        write_report(frame, tmp_path / "report.html", random_state=7)
    assert (asked[0].max_time, asked[0].random_state) == (FIT_SECONDS, 7)
