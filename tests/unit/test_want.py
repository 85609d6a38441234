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
        ("port", 1023),
        ("max_model_len", 1.5),
        ("max_num_seqs", 0),
        ("model", ""),
        ("model", 3.6),
        ("model", "a\nb"),
        ("model", "$(id)"),
        ("service", "a" * 33),
        ("service", "../x"),
        ("service", "-x"),
        ("service", "x-"),
        ("service", "-"),
        ("service", "x\n"),
        ("bind", "example.org"),
        ("model_store", "models"),
        ("model_store", "/srv/../etc"),
        ("model_store", "/"),
        ("model_store", "/srv/\x1b[0m"),
        ("model_store", "/srv/\u2028x"),
        ("model_store", "/srv/\udcff"),
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
        ("images_per_prompt", 0),
        ("chat_template", "chat.jinja"),
        ("chat_template", "/srv/../etc/shadow"),
        ("chat_template", "/srv/a b"),
        ("chat_template", "/srv/a,b"),
        ("chat_template", "/srv/a=b"),
        ("chat_template", "/srv/$(id)"),
        ("chat_template", "/srv/{drafter}"),
        ("chat_template", "/home/me/chat.jinja"),
        ("chat_template", "/tmp/chat.jinja"),
        ("chat_template", "/"),
        ("chat_template", "/etc"),
        ("chat_template", "/srv/templates/"),
        ("chat_template", "/srv/templates/."),
        ("lora", {}),
        ("lora", []),
        ("lora", "a=/srv/a"),
        ("lora", {"a=b": "/srv/a"}),
        ("lora", {"--x": "/srv/a"}),
        ("lora", {"a": "a"}),
        ("lora", {"a": None}),
        ("lora", {1: "/srv/a"}),
        ("lora", {f"a{n}": "/srv/a" for n in range(17)}),
        ("max_lora_rank", 24),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(key, value):
    assert faults({key: value})[0].startswith(f"{key}: ")


@pytest.mark.parametrize("key", ["proxy", "python_index", "hub"])
@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_credentials_in_a_url_are_refused_and_not_repeated(key: str, scheme: str):
    (fault,) = faults({key: f"{scheme}://me:hunter2@host:1080/path"})
    assert "hunter2" not in fault


@pytest.mark.parametrize("key", ["python_index", "python_find_links", "python_mirror", "hub"])
@pytest.mark.parametrize("end", ["?token=hunter2", "#hunter2"])
def test_a_url_ends_with_its_path_and_what_stands_behind_is_not_repeated(key: str, end: str):
    (fault,) = faults({key: f"https://host/simple{end}"})
    assert fault.startswith(f"{key}: needs an address without ? and #")
    assert "hunter2" not in fault


def test_a_proxy_is_spoken_to_in_plain_http():
    assert faults({"proxy": "https://proxy:3128"})[0].startswith("proxy: needs an http:// URL")
    url = "http://proxy:3128"
    assert Want.from_data({"proxy": url}).proxy == url


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
    assert faults(["model"]) == ("gpuwright: needs a mapping, found a list",)


@pytest.mark.parametrize("key", ["extra_models", "hub_token_file"])
def test_paths_of_the_control_machine_are_paths(key, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert getattr(Want.from_data({key: "more.yaml"}), key) == Path("more.yaml")
    assert getattr(Want.from_data({key: "~/more.yaml"}), key) == tmp_path / "more.yaml"
    assert faults({key: "~nobody-has-this-name/x"})[0].startswith(f"{key}: ")


def test_a_lower_port_is_refused_with_its_reason():
    assert faults({"port": 80}) == (
        "port: needs 1,024 to 65,535, found 80: the service has no right to bind lower ports",
    )


@pytest.mark.parametrize(
    "text", ["a b", 'a"b', "a'b", "a%b", "a$b", "a\\b", "a\nb", "a\n", "é", "-a"]
)
def test_a_served_name_is_plain_and_what_it_may_hold_is_said(text):
    (fault,) = faults({"served_model_name": text})
    assert "needs" in fault
    assert "\n" not in fault


@pytest.mark.parametrize("key", ["model_store", "cache"])
@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/tmp", "emptied"),
        ("/tmp/models", "emptied"),
        ("//tmp/./models", "emptied"),
        ("/var/tmp/models", "emptied"),
        ("/run/models", "emptied"),
        ("/var/run/models", "emptied"),
        ("/proc/models", "not on a disk"),
        ("/sys", "not on a disk"),
        ("/dev/shm/models", "not on a disk"),
        *(
            (f"/{name}", "the system's own")
            for name in ("usr", "etc", "var", "home", "root", "srv", "opt", "boot", "lib", "bin")
        ),
        *((f"/{name}", "the system's own") for name in ("sbin", "mnt", "media", "var/lib")),
        ("/srv/", "the system's own"),
        ("/./", "the system's own"),
    ],
)
def test_a_directory_of_the_systems_does_not_become_ours(key, path, why):
    (fault,) = faults({key: path})
    assert fault.startswith(f"{key}: ")
    assert why in fault


@pytest.mark.parametrize("path", ["/srv/a b", "/srv/$(id)", "/srv/a;b", "/srv/a'b", "/srv/*"])
def test_a_cache_is_called_so_that_no_shell_reads_more_into_it(path):
    (fault,) = faults({"cache": path})
    assert "letters, digits and" in fault
    assert Want.from_data({"cache": "/srv/big_1/a+b.c-d"}).cache == "/srv/big_1/a+b.c-d"


@pytest.mark.parametrize("path", ["/srv/models", "/mnt/big/models", "/home/me/models", "/data"])
def test_a_directory_below_or_beside_the_systems_may(path):
    assert Want.from_data({"model_store": path}).model_store == path


def test_one_directory_has_one_spelling():
    assert Want.from_data({"model_store": "//srv/./models/"}).model_store == "/srv/models"


@pytest.mark.parametrize("store", ["/srv/cache", "/srv/cache/models", "/var/cache/gpuwright/x"])
def test_models_are_not_kept_in_what_may_be_removed(store):
    cache = "/srv/cache" if store.startswith("/srv") else "/var/cache/gpuwright"
    assert faults({"model_store": store, "cache": cache})[0].startswith("model_store: ")


def test_a_token_is_one_word_of_its_file(tmp_path):
    path = tmp_path / "token"
    want = Want.from_data({"hub_token_file": str(path)})
    for text in ("", "two words", "hunter2-é", "hunter2\nhunter3"):
        path.write_text(text)
        with pytest.raises(WantError, match="hub_token_file: ") as caught:
            want.hub_token()
        assert "hunter" not in str(caught.value)
    path.write_text("hf_abc\n")
    assert want.hub_token() == "hf_abc"
    assert Want().hub_token() is None


def test_a_token_file_that_is_missing_is_named(tmp_path):
    path = tmp_path / "none"
    with pytest.raises(WantError) as caught:
        Want(hub_token_file=path).hub_token()
    assert caught.value.faults == (f"hub_token_file: {path}: No such file or directory",)


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
        assert 1024 <= want.port <= 65535


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"images_per_prompt": 2}, "images_per_prompt"),
        ({"max_lora_rank": 16}, "max_lora_rank"),
        ({"lora": {"x": "/srv/x"}, "served_model_name": "x"}, "lora"),
    ],
)
def test_a_key_that_means_nothing_beside_the_others_is_refused(data, key):
    (fault,) = faults(data)
    assert fault.startswith(f"{key}: ")
