from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwright.refusals import WantError
from gpuwright.want import KEYS, Want


def faults(data):
    with pytest.raises(WantError) as caught:
        Want.from_data(data)
    return caught.value.faults


def test_nothing_wanted_is_the_defaults():
    want = Want.from_data({})
    assert (want.model, want.service, want.bind, want.port) == ("auto", "llm", "127.0.0.1", 8080)
    assert want.model_store == "/var/lib/gpuwright/models"
    assert want.layout.cache == "/var/cache/gpuwright"
    assert want.gpus is None
    assert not want.cpu_only


def test_an_unknown_key_names_the_nearest_legal_one():
    assert faults({"modle": "x"}) == ("modle: unknown key; nearest: model",)


def test_every_fault_is_reported_at_once():
    found = faults({"prot": 1, "port": 0, "bind": "nowhere", "service": "My Service"})
    assert [fault.split(":")[0] for fault in found] == ["prot", "port", "bind", "service"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", True),
        ("port", "8080"),
        ("port", 65536),
        ("max_model_len", 1.5),
        ("max_num_seqs", 0),
        ("model", ""),
        ("model", 3.6),
        ("model", "a\nb"),
        ("model", "$(id)"),
        ("service", "a" * 33),
        ("service", "../x"),
        ("bind", "example.org"),
        ("model_store", "models"),
        ("model_store", "/srv/../etc"),
        ("model_store", "/"),
        ("model_store", "/srv/\x1b[0m"),
        ("hub", "ftp://example.org"),
        ("hub", "https://"),
        ("hub", "https://example.org:port"),
        ("proxy", "example.org:3128"),
        ("ca_bundle", "ca.pem"),
        ("gpus", []),
        ("gpus", ["GPU 0"]),
        ("gpus", [0, "0"]),
        ("gpus", True),
        ("gpus", {"0": 1}),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(key, value):
    assert faults({key: value})[0].startswith(f"{key}: ")


@pytest.mark.parametrize("key", ["proxy", "python_index", "hub"])
@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_credentials_in_a_url_are_refused_and_not_repeated(key: str, scheme: str):
    (fault,) = faults({key: f"{scheme}://me:hunter2@host:1080/path"})
    assert "hunter2" not in fault


def test_an_address_has_no_scope():
    assert faults({"bind": "fe80::1%a b; x"})[0].startswith("bind: ")


@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        ("none", ()),
        (0, ("0",)),
        ([1, 0], ("1", "0")),
        (["GPU-0a1b-2c"], ("GPU-0a1b-2c",)),
    ],
)
def test_cards_are_indexes_or_uuids_or_none_at_all(value, gpus):
    assert Want.from_data({"gpus": value}).gpus == gpus


def test_none_leaves_a_choice_open():
    assert Want.from_data({"engine": None, "gpus": None}) == Want()


def test_localhost_is_the_loopback_address():
    assert Want.from_data({"bind": "localhost"}).bind == "127.0.0.1"


def test_what_is_not_a_mapping_is_refused():
    assert faults(["model"]) == ("gpuwright: needs a mapping, found list",)


def test_paths_of_the_control_machine_are_paths():
    assert Want.from_data({"extra_models": "more.yaml"}).extra_models == Path("more.yaml")


@given(
    st.dictionaries(
        st.sampled_from(KEYS) | st.text(max_size=8),
        st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.lists(st.integers()),
        max_size=6,
    )
)
def test_any_mapping_is_a_want_or_a_want_error(data):
    try:
        want = Want.from_data(data)
    except WantError as error:
        assert error.faults
    else:
        assert 1 <= want.port <= 65535
