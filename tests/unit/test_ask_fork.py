"""A fork's parser is asked for what its help leaves out, and wherever its help is wrong."""

from pathlib import Path

from tools.ask_fork import flags

HELP = """\
usage: server [options]

general:

  -h,    --help, --usage          print usage and exit
         --version                show version and build info
  -c,    --ctx-size N             size of the prompt context
  -mea,  --max-extra-alloc        a value that the help does not name
  -fa, --flash-attn (auto|on|off|0|1)
                                  set Flash Attention
  --spec-type Name [none | ngram - cache]
                                  kind of draft
  -sas,  --scheduler_async,       a name that the parser spells otherwise
         --prompt-only N          of another program
"""
VALUED = "-c --ctx-size -mea --max-extra-alloc -fa --flash-attn --spec-type --alias -s"
SERVER = f"""#!/bin/sh
# strings: \\0--alias\\0--never\\0
while [ $# -gt 0 ]; do
    case " {VALUED} " in *" $1 "*) shift 2; continue;; esac
    case $1 in
        -h|--help|--usage) cat <<'END'
{HELP}
END
        ;;
        --version) echo 'version: 0 (x)' >&2; exit 0;;
        -sas) ;;
        *) echo "error: unknown argument: $1" >&2; exit 1;;
    esac
    shift
done
"""


def test_names_and_values_are_those_that_the_parser_takes(tmp_path: Path):
    server = tmp_path / "server"
    server.write_bytes(SERVER.replace("\\0", "\0").encode())
    server.chmod(0o755)
    found = {tuple(flag["names"]): (flag["takes"], flag["values"]) for flag in flags(server)}
    assert found == {
        ("-h", "--help", "--usage"): ("0", []),
        ("--version",): ("0", []),
        ("-c", "--ctx-size"): ("1", []),
        ("-mea", "--max-extra-alloc"): ("1", []),
        ("-fa", "--flash-attn"): ("1", ["auto", "on", "off", "0", "1"]),
        ("--spec-type",): ("1", ["none", "ngram-cache"]),
        ("-sas",): ("0", []),
        ("--alias",): ("1", []),
    }
