"""Files that a want names: looked at as their reader would, refused before anything is done."""

import json
import os

import pytest

from gpuwright.expectation import expectation, probe_spec
from gpuwright.host import Host
from gpuwright.load import load_matrix
from gpuwright.onnode.named import named
from gpuwright.onnode.network import addresses
from gpuwright.onnode.tree import Tree
from gpuwright.running import obstacle
from gpuwright.selection import decide
from gpuwright.want import KEYS, Want
from tests.unit.decisions import decided, planned, refused, setting, warnings_of
from tests.unit.onnode_rig import run
from tools.golden import TESTS, document

TEMPLATES = TESTS.parent / "templates"
TEMPLATE = "/srv/chat.jinja"
TONE, GGUF = "/srv/tone", "/srv/tone.gguf"
FILE = {"type": "file", "bytes": 900, "resolved": TEMPLATE, "barred": None, "adapter": None}
PEFT = {"format": "peft", "rank": 64, "base": "meta-llama/Llama-3.1-8B-Instruct", "beyond": []}
ADAPTER = {"type": "dir", "bytes": 9000, "resolved": TONE, "barred": None, "adapter": PEFT}


def looked(path, **entry):
    return setting("named", to={path: entry})


def look(path, served=True):
    notes = []
    found = named(Tree(), {str(path): served}, notes)
    assert notes == []
    return found[str(path)]


# On the node


def test_nothing_is_not_a_file_that_cannot_be_read(tmp_path):
    tmp_path.chmod(0o755)
    assert look(tmp_path / "none", served=False) is None


def test_a_link_is_followed_and_told(tmp_path):
    (tmp_path / "a.jinja").write_text("{{ x }}")
    (tmp_path / "link").symlink_to("a.jinja")
    found = look(tmp_path / "link", served=False)
    assert (found["type"], found["bytes"]) == ("file", 7)
    assert found["resolved"] == str((tmp_path / "a.jinja").resolve())


@pytest.mark.parametrize("closed", ["", "inner", "inner/file"])
def test_what_keeps_the_services_user_out_is_named(closed, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "file").write_text("x")
    for place in (tmp_path, inner, inner / "file"):
        place.chmod(0o755)
    for place in tmp_path.parents:
        # Ours alone, as pytest makes them.
        if place.owner() == tmp_path.owner() and place.stat().st_mode & 0o777 == 0o700:
            place.chmod(0o711)
    (tmp_path / closed).chmod(0)
    assert look(inner / "file")["barred"] == str(tmp_path / closed).rstrip("/")


def test_a_directory_is_as_readable_as_each_file_in_it(tmp_path):
    root = tmp_path / "root"
    folder = root / "srv/tone"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(
        json.dumps({"r": 8, "rank_pattern": {"q_proj": 32}, "base_model_name_or_path": "org/m"})
    )
    (folder / "adapter_model.safetensors").write_bytes(b"x" * 100)
    found = named(Tree(str(root)), {"/srv/tone": True}, [])["/srv/tone"]
    assert found["adapter"] == {"format": "peft", "rank": 32, "base": "org/m", "beyond": []}
    assert found["resolved"] == "/srv/tone"
    assert found["bytes"] > 100


@pytest.mark.parametrize("name", ["chat.jinja", "tone/adapter_config.json", "tone/adapter.gguf"])
def test_a_file_is_another_when_an_older_one_replaces_it_and_not_when_it_is_touched(name, tmp_path):
    top = tmp_path / "srv"
    (top / "tone").mkdir(parents=True)
    files = [top / each for each in ("chat.jinja", "tone/adapter_config.json")]
    for file in files:
        file.write_text("first")
    weights = top / "tone/adapter.gguf"
    weights.write_bytes(bytes(2 << 20))

    def identities():
        found = named(Tree(str(tmp_path)), {TEMPLATE: True, TONE: True}, [])
        return {path: entry["identity"] for path, entry in found.items()}

    before = identities()
    for file in files:
        os.utime(file)
    assert identities() == before
    changed = top / name
    changed.write_bytes(changed.read_bytes()[::-1])
    os.utime(changed, (1, 1))
    (other,) = (path for path, identity in identities().items() if identity != before[path])
    assert str(changed).startswith(f"{tmp_path}{other}")


def unit_of(identity):
    """A service's unit, where its chat template is the one that `identity` names."""
    told = {TEMPLATE: FILE | {"identity": identity}}
    node = Host.from_document(document("cpu-debian12") | {"named": told})
    want, matrix = Want.from_data({"chat_template": TEMPLATE}), load_matrix()
    plan = decide(node, want, matrix)
    wanted = expectation(want=want, node=node, plan=plan, matrix=matrix, templates=TEMPLATES)
    assert obstacle(wanted.expected, serving({"named": told})) is None
    unseen = obstacle(wanted.expected, serving({"named": {}}))
    assert unseen == f"the probe could not read {TEMPLATE}"
    return wanted.expected.unit


def serving(told):
    service = {"active": "active", "load": "loaded"}
    return told | {
        "packages": {},
        "ours": {"files": {}, "service": service, "user": None},
    }


def test_a_service_is_started_anew_for_another_file_and_for_no_other_reason():
    assert unit_of("a") == unit_of("a") != unit_of("b")


def test_an_adapter_of_links_as_hubs_keep_them_is_read(tmp_path):
    files = tmp_path / "blobs", tmp_path / "snapshots/1"
    for place in files:
        place.mkdir(parents=True)
    for name, text in (("adapter_config.json", '{"r": 8}'), ("adapter_model.safetensors", "x")):
        (files[0] / name[-6:]).write_text(text)
        (files[1] / name).symlink_to(f"../../blobs/{name[-6:]}")
    found = look(files[1], served=False)
    assert (found["adapter"]["rank"], found["bytes"]) == (8, 9)


@pytest.mark.parametrize(
    ("text", "rank", "beyond"),
    [
        ("no json", None, []),
        ("[]", None, []),
        ('{"r": "8"}', None, []),
        ('{"r": -1, "rank_pattern": 3}', None, []),
        ('{"r": true}', None, []),
        ('{"r": 16, "use_dora": true, "modules_to_save": ["lm_head"]}', 16, 2),
    ],
)
def test_an_adapters_configuration_is_anybodys_text(text, rank, beyond, tmp_path):
    (tmp_path / "adapter_config.json").write_text(text)
    assert look(tmp_path, served=False)["adapter"] is None
    (tmp_path / "adapter_model.bin").write_bytes(b"x")
    found = look(tmp_path, served=False)["adapter"]
    assert found["rank"] == rank
    assert len(found["beyond"]) == (beyond or 0)


def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"GGUF\3\0\0\0")
    assert look(tmp_path / "a", served=False)["adapter"]["format"] == "gguf"


def test_the_probe_looks_at_what_the_want_names(tmp_path):
    (tmp_path / "a.pem").write_text("x")
    want = Want.from_data({"ca_bundle": str(tmp_path / "a.pem"), "chat_template": "/srv/none"})
    spec = probe_spec(want, verify="quick", packages=())
    answer, _ = run("probe", {**spec, "sections": ["named"]})
    assert set(answer["named"]) == {str(tmp_path / "a.pem"), "/srv/none"}
    assert answer["named"]["/srv/none"] is None


@pytest.mark.parametrize(
    ("routes", "table", "found"),
    [
        ("  |-- 10.0.0.1\n     /32 host LOCAL\n", "", ["10.0.0.1"]),
        ("  |-- 10.0.0.1\n     /32 link UNICAST\n     /32 host LOCAL\n", "", ["10.0.0.1"]),
        ("  |-- 10.0.0.0\n     /24 link UNICAST\n  |-- 127.0.0.1\n     /32 host LOCAL\n", "", []),
        ("", f"{'0' * 31}1 01 80 10 80 lo\n", ["::"]),
        (
            "",
            f"fd{'0' * 29}2 04 40 00 82 eth0\nfe80{'0' * 27}1 04 40 20 80 eth0\n",
            ["::", "fd00::2"],
        ),
        ("junk\n|-- 1.2.3", "junk", ["::"]),
    ],
)
def test_addresses_are_the_nodes_own_without_loopback(routes, table, found, tmp_path):
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/fib_trie").write_text(routes)
    (tmp_path / "proc/net/if_inet6").write_text(table)
    assert addresses(Tree(str(tmp_path))) == found


def test_addresses_that_cannot_be_read_are_unknown(tmp_path):
    assert addresses(Tree(str(tmp_path))) is None


# In the decision


@pytest.mark.parametrize(
    ("bind", "known", "fits"),
    [
        ("192.168.1.20", ["192.168.1.20"], True),
        ("192.168.1.21", ["192.168.1.20"], False),
        ("127.0.0.5", [], True),
        ("0.0.0.0", [], True),
        ("::1", ["::"], True),
        ("::1", [], False),
        ("::", ["::"], True),
        ("::", [], False),
        ("192.168.1.21", None, True),
    ],
)
def test_a_service_is_bound_to_an_address_of_the_node(bind, known, fits):
    wanted = {"model": "smollm2", "bind": bind}
    found = decided("cpu-debian12", wanted, setting("addresses", to=known))
    if fits:
        assert found.bind == bind
    else:
        assert f"bind {bind}: needs an address of the node: 127.0.0.1" in found.sentence()
        assert "`bind: 127.0.0.1`" in found.sentence()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (None, "needs a file, found nothing"),
        (FILE | {"type": "dir"}, "needs a file, found a directory"),
        (FILE | {"type": "other"}, "needs a file, found another kind"),
        (FILE | {"bytes": 0}, "needs a template of 1 to 1,048,576 bytes, found 0 bytes"),
        (FILE | {"bytes": 2 << 20}, "found 2,097,152 bytes"),
        (
            FILE | {"type": None, "bytes": None, "barred": "/srv"},
            "needs to be readable for the service's user, found /srv is not. "
            "What would help: chmod o+x /srv",
        ),
        (FILE | {"barred": TEMPLATE}, f"chmod o+r {TEMPLATE}"),
        (FILE | {"resolved": "/home/me/chat.jinja"}, "all of /home is hidden from it"),
    ],
)
def test_a_template_that_the_service_could_not_read_is_refused(entry, said):
    refusal = refused(
        "cpu-debian12",
        {"model": "smollm2", "chat_template": TEMPLATE},
        setting("named", to={TEMPLATE: entry}),
    )
    assert f"chat_template {TEMPLATE}: " in refusal.sentence()
    assert said in refusal.sentence()


def test_a_template_that_is_there_is_served_and_one_that_nobody_looked_at_is_assumed():
    wanted = {"model": "smollm2", "chat_template": TEMPLATE}
    assumed = f"chat_template {TEMPLATE}: taken to be there and readable, as nobody has looked"
    assert assumed in planned("cpu-debian12", wanted).assumed
    assert assumed not in planned("cpu-debian12", wanted, looked(TEMPLATE, **FILE)).assumed


@pytest.mark.parametrize(
    ("key", "value", "type"),
    [
        ("ca_bundle", "/etc/site.pem", "file"),
        ("python_offline", "/srv/wheels", "dir"),
        ("python_mirror", "/srv/pythons", "dir"),
        ("python_find_links", ["/srv/wheels"], "dir"),
    ],
)
def test_what_root_reads_is_looked_at_too(key, value, type):
    path = value if isinstance(value, str) else value[0]
    wanted = {"model": "smollm2", key: value}
    there = FILE | {"type": type, "resolved": "/root/elsewhere"}
    planned("cpu-debian12", wanted, setting("named", to={path: there}))
    refusal = refused("cpu-debian12", wanted, setting("named", to={path: None}))
    assert f"{key} {path}: needs" in refusal.sentence()


STORE = "/srv/deep/models"
OPEN = {"type": "dir", "bytes": 0, "resolved": STORE, "barred": None, "adapter": None}


@pytest.mark.parametrize(
    ("entry", "refused_for"),
    [
        (None, None),
        (OPEN, None),
        (OPEN | {"barred": f"{STORE}/notes"}, None),
        (OPEN | {"type": None, "barred": "/srv/deep"}, "chmod o+x /srv/deep"),
        (OPEN | {"barred": STORE}, f"chmod o+rx {STORE}"),
        (OPEN | {"resolved": "/home/me/models"}, "all of /home is hidden from it"),
    ],
)
def test_a_store_that_the_service_could_not_reach_is_refused(entry, refused_for):
    wanted = {"model": "smollm2", "model_store": STORE}
    found = decided("cpu-debian12", wanted, setting("named", to={STORE: entry}))
    if refused_for is None:
        assert found.model == "smollm2-135m-instruct"
    else:
        assert refused_for in found.sentence()


def test_a_store_below_a_home_is_shown_to_the_service_whoever_may_enter_the_home():
    spec = probe_spec(
        Want.from_data({"model_store": "/home/me/models"}), verify="quick", packages=()
    )
    assert spec["named"] == {}


def test_every_key_that_names_a_path_on_the_node_is_looked_at():
    """`cache` is root's own, and `model_store` is asked above."""
    paths = {
        key: f"/srv/{key}"
        for key in KEYS
        if key not in ("model_store", "cache", "extra_models", "hub_token_file")
        and _takes_a_path(key)
    }
    wanted = Want.from_data({**paths, "lora": {"tone": TONE}})
    spec = probe_spec(wanted, verify="quick", packages=())
    assert set(spec["named"]) == {*paths.values(), TONE}


def _takes_a_path(key):
    try:
        found = getattr(Want.from_data({key: f"/srv/{key}"}), key)
    except Exception:
        return False
    return f"/srv/{key}" in (found if isinstance(found, tuple) else (found,))


LLAMA = {"model": "llama-3.1-8b", "lora": {"tone": TONE}}


def test_the_rank_of_an_adapter_is_told_to_the_engine():
    plan = planned("2x3090-nvlink", LLAMA | {"engine": "vllm"}, looked(TONE, **ADAPTER))
    words = plan.feature_arguments
    assert words[words.index("--max-lora-rank") + 1] == "64"


def test_an_adapter_of_a_higher_rank_than_is_pinned_is_refused():
    wanted = LLAMA | {"engine": "vllm", "max_lora_rank": 32}
    refusal = refused("2x3090-nvlink", wanted, looked(TONE, **ADAPTER))
    assert "needs max_lora_rank of at least 64, found 32" in refusal.sentence()
    assert "`max_lora_rank: 64`" in refusal.sentence()


@pytest.mark.parametrize(
    ("engine", "adapter", "said"),
    [
        ("vllm", {"format": "gguf"}, "adapter_config.json and adapter_model, found a GGUF"),
        ("llama.cpp", PEFT, "needs a GGUF file, found a directory with adapter_config.json"),
        ("vllm", None, "found neither a GGUF file nor a directory"),
        ("sglang", PEFT | {"beyond": ["use_dora"]}, "found use_dora in its configuration"),
        ("sglang", PEFT | {"rank": None}, "needs a rank in its adapter_config.json, found none"),
        ("vllm", PEFT | {"rank": 600}, "needs a rank of at most 512, found 600"),
    ],
)
def test_an_adapter_that_the_engine_does_not_take_is_refused(engine, adapter, said):
    entry = ADAPTER | {"adapter": adapter}
    refusal = refused("2x3090-nvlink", LLAMA | {"engine": engine}, looked(TONE, **entry))
    assert any(said in line for line in refusal.reasons), refusal.reasons


def test_an_adapter_takes_the_engine_that_can_use_it():
    entry = ADAPTER | {"adapter": {"format": "gguf"}}
    assert planned("2x3090-nvlink", LLAMA, looked(TONE, **entry)).engine == "llama.cpp"


@pytest.mark.parametrize(
    ("base", "warned"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", False),
        ("/data/Llama-3.1-8B-Instruct/", False),
        ("Qwen/Qwen3-8B", True),
    ],
)
def test_an_adapter_of_another_model_is_warned_about(base, warned):
    entry = ADAPTER | {"adapter": PEFT | {"base": base}}
    plan = planned("2x3090-nvlink", LLAMA | {"engine": "vllm"}, looked(TONE, **entry))
    told = [text for text in warnings_of(plan) if text.startswith("lora tone: made for")]
    assert bool(told) is warned
