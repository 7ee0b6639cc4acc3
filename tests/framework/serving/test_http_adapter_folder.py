"""Which paths a client may name: what the kernel opens for them decides whether the check was right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.serving.http.adapter_folder import find_adapter
from loadmaster.serving.http.errors import ApiError


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with adapters, links inside it, links out of it, and neighbours whose names begin alike."""
    root = tmp_path_factory.mktemp("root")
    for name in ("allowed/one", "allowed/deep/two", "allowed/mixed", "allowed-too/one", "other"):
        (root / name).mkdir(parents=True)
        (root / name / "file").touch()
    folder = root / "allowed"
    (folder / "inner").symlink_to(folder / "deep")
    (folder / "out").symlink_to(root / "other")
    (folder / "up").symlink_to("..")
    (folder / "loop").symlink_to("loop")
    (folder / "mixed" / "tensors").symlink_to(root / "other" / "file")
    (folder / "deep" / "two" / "tensors").symlink_to(folder / "one" / "file")
    (root / "alias").symlink_to(folder)
    return folder


def refusal(folder: Path, path: str) -> tuple[int, str | None]:
    with pytest.raises(ApiError) as caught:
        find_adapter(str(folder), path)
    assert caught.value.detail.param == "lora_path"
    return caught.value.status, caught.value.detail.code


@pytest.mark.parametrize("path", ["one", "./one/", "deep/two", "inner/two", "deep/../one", "up/allowed/one", "{allowed}/one"])
def test_what_lies_inside_is_found(allowed: Path, path: str) -> None:
    found = find_adapter(str(allowed), path.replace("{allowed}", str(allowed)))
    assert found in (str(allowed / "one"), str(allowed / "deep" / "two"))
    # The folder itself may be given through a link.
    assert find_adapter(str(allowed.parent / "alias"), path.replace("{allowed}", str(allowed))) == found


@pytest.mark.parametrize(
    "path", ["..", "../other", "../allowed-too/one", "/", "/etc", "out", "up/other", "up", "mixed", "../none"]
)
def test_what_lies_outside_is_refused(allowed: Path, path: str) -> None:
    assert refusal(allowed, path) == (403, "path_not_allowed")


@pytest.mark.parametrize("path", ["none", "one/file", "loop", "one\0", "x" * 300, "one/file/x"])
def test_what_is_no_folder_is_refused(allowed: Path, path: str) -> None:
    assert refusal(allowed, path) == (400, "invalid_value")


@given(st.lists(st.sampled_from([".", "..", "one", "deep", "two", "inner", "out", "up", "allowed", "other"]), max_size=6))
def test_the_kernel_agrees(allowed: Path, parts: list[str]) -> None:
    path = "/".join(parts) or "."
    try:
        found = Path(find_adapter(str(allowed), path))
    except ApiError:
        found = None
    opened = _opened(allowed / path)
    if opened is not None:
        fits = opened.is_relative_to(allowed) and not _links_out(opened, allowed)
        assert found == (opened if fits else None)
    elif found is not None:
        # `none/..` is understood where the kernel finds nothing; it leads nowhere else.
        assert _opened(found) == found
        assert found.is_relative_to(allowed)
        assert not _links_out(found, allowed)


def _opened(path: Path) -> Path | None:
    """Return the folder that the kernel opens for a path."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        return Path(f"/proc/self/fd/{handle}").readlink()
    finally:
        os.close(handle)


def _links_out(folder: Path, allowed: Path) -> bool:
    return any(not Path(os.path.realpath(entry)).is_relative_to(allowed) for entry in folder.iterdir())
