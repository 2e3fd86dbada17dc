"""A bar on a terminal, plain lines in a log."""

import sys

import pytest

from emflow import progress as module
from emflow.progress import progress


def work(n, **options):
    for each in (bar := progress(range(n), desc="work", **options)):
        bar.set_postfix(loss=each / 3)


def test_lines_in_a_log(capsys, monkeypatch):
    monkeypatch.setattr(module, "EVERY", 0.0)
    work(3, unit="step", verbose=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert [line.split(" in ")[0] for line in lines] == [*(f"work: {n} of 3 steps" for n in (1, 2, 3)), "work: 3 steps"]
    assert lines[0].endswith("to go, loss=0")
    assert lines[-1].endswith("00:00, loss=0.667")
    assert "\r" not in shown.err


def test_few_lines(capsys):
    work(1000, verbose=True)
    assert capsys.readouterr().err == "work: 1000 iterations in 00:00, loss=333\n"


def test_a_loop_that_is_left_early_writes_its_last_line(capsys):
    for _ in progress(range(5), desc="work", verbose=True):
        break
    assert capsys.readouterr().err == "work: 0 iterations in 00:00\n"


def test_counting_by_hand_from_a_start(capsys, monkeypatch):
    monkeypatch.setattr(module, "EVERY", 0.0)
    with progress(total=9, initial=4, desc="work", unit="epoch", verbose=True) as bar:
        bar.update()
    assert capsys.readouterr().err.startswith("work: 5 of 9 epochs in 00:00, ")


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    work(3, verbose=True)
    assert "100%|" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_unless_asked_for(terminal, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    work(3, verbose=False)
    assert capsys.readouterr().err == ""
