"""Help says what is legal, with examples that run, and loads nothing that it does not need."""

import shlex
import subprocess
import sys

import pytest

from gpuwright import cli
from gpuwright.cli import main


@pytest.mark.parametrize("command", [[], *([name] for name in cli.COMMANDS)])
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    assert "usage: gpuwright" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", *cli.COMMANDS])
def test_help_fits_on_one_screen_and_shows_an_example(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 42
    assert f"\n  gpuwright {name}" in shown


@pytest.mark.parametrize("name", sorted({*cli.EXAMPLES} - {"connect", "doctor"}))
def test_examples_of_the_help_run(capsys, name):
    for line in cli.EXAMPLES[name]:
        assert main(shlex.split(line)[1:]) == 0
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("words", [["--help"], ["fits", "--gpu", "3090"]])
def test_a_question_loads_neither_pyinfra_nor_templates(words):
    program = (
        "import sys; from gpuwright.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "loaded = {'pyinfra', 'gevent', 'jinja2', 'pynvml'} & set(sys.modules)\n"
        "sys.exit(f'loads {loaded}' if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", program, *words], check=True, stdout=subprocess.DEVNULL)


def test_the_version_is_shown(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("gpuwright 0.")
