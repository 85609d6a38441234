"""Render the systemd unit of a plan; every outside string is quoted for systemd on its way in."""

import re
from collections.abc import Sequence
from pathlib import Path

from gpuwright.expected import PLAN_VARIABLE, digest_of
from gpuwright.launch import Launch
from gpuwright.launch_files import runtime_directory
from gpuwright.layout import CACHE, USER, Layout
from gpuwright.plan import Plan

# Words that systemd's command line parser takes as they are (systemd.service(5), "Command lines").
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@+=:,./-]+")
_HIDDEN_BY_PROTECT_HOME = ("/home/", "/root/", "/run/user/")


class UnitError(ValueError):
    """A value cannot stand in a unit file; the text says which."""


def systemd_word(value: str) -> str:
    """One word of a unit's command line or Environment= line, quoted so that systemd reads `value`.

    Specifiers (%), variables ($), quotes and backslashes lose their meaning. Control characters
    have no place in a unit: UnitError.
    """
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise UnitError(f"unit value {value!r}: control characters, needed plain text")
    escaped = value.replace("%", "%%").replace("$", "$$")
    if _PLAIN_WORD.fullmatch(escaped):
        return escaped
    escaped = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def environment_line(name: str, value: str) -> str:
    """The right side of an `Environment=` line. There, unlike in a command line, $ is plain."""
    word = systemd_word(f"{name}={value}").replace("$$", "$")
    return word if word.startswith('"') else f'"{word}"'


def bound_path(path: str) -> str:
    """A path of `BindReadOnlyPaths=`. There $ is plain, too, and a colon parts two paths."""
    return systemd_word(path).replace("$$", "$").replace(":", "\\:")


def _description(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", " ", text).replace("%", "%%")


def render_unit(
    *,
    plan: Plan,
    launch: Launch,
    layout: Layout,
    engine_dir: str,
    templates: Path,
    systemd_version: int,
    stop_timeout_seconds: int = 30,
) -> str:
    """The whole unit file of `plan`.

    `templates` is the folder of the checkout that holds `service.j2`. The unit carries the
    digest of its own text (without that line) as an environment variable, so that a running process
    tells which text it was started from.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    # Unit files are not HTML; every value that comes from outside goes through systemd_word.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(str(templates)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template("service.j2")
    checkpoints = [layout.checkpoint_dir(each.id) for each in plan.checkpoints]
    kernels = layout.kernels(plan.engine, plan.release).removeprefix(f"{CACHE}/")

    def render(digest: str) -> str:
        return template.render(
            description=_description(
                f"gpuwright {plan.service}: {plan.served_model_name} on {plan.engine} "
                f"{plan.release} ({plan.build_tag})"
            ),
            user=USER,
            command=_command_line(launch.argv),
            environment=[
                environment_line(name, value)
                for name, value in sorted((launch.environment | {PLAN_VARIABLE: digest}).items())
            ],
            before=" ".join(systemd_word(word) for word in launch.before),
            runtime_directory=runtime_directory(plan),
            kernels=kernels if launch.compiles else "",
            environment_file=layout.environment_path(plan.service),
            on_gpu=plan.on_gpu,
            loopback=plan.loopback,
            model_below_home=checkpoints[0].startswith(_HIDDEN_BY_PROTECT_HOME),
            checkpoints=[bound_path(path) for path in checkpoints],
            engine_dir=systemd_word(engine_dir),
            systemd_version=systemd_version,
            stop_timeout_seconds=stop_timeout_seconds,
        )

    return render(digest_of(render("")))


def _command_line(argv: Sequence[str]) -> str:
    """`ExecStart=` text, one flag with its value on a line each, so that a diff reads well."""
    lines: list[str] = []
    for word in argv:
        quoted = systemd_word(word)
        if lines and not word.startswith("--"):
            lines[-1] += f" {quoted}"
        else:
            lines.append(quoted)
    return " \\\n  ".join(lines)
