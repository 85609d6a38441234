"""The Python package index to use where the operator named none: whatever pip here would use."""

from urllib.parse import urlsplit

from gpuwright.refusals import WantError


def default_index_url() -> str:
    """The index URL of this machine's pip: its environment, its configuration, its own default.

    pip is asked because it already knows a site's mirror; an index that only this machine can read
    (a folder) is of no use to a node. Raises WantError where pip is not installed beside us.
    """
    try:
        from pip._internal.commands import create_command
    except ImportError:
        raise WantError(
            "python_index: not set, and there is no pip here to ask; name an index URL"
        ) from None
    parser = create_command("download").parser
    options, _ = parser.parse_args([])
    url = str(options.index_url or "")
    if urlsplit(url).scheme not in ("http", "https"):
        raise WantError(
            f"python_index: pip's index is {url!r}, needed an http or https URL that nodes reach"
        )
    return url.rstrip("/")
