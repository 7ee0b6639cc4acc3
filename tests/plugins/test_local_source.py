"""The local source: what it lists, what it refuses to leave, how it reads."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from checkpoints import hub_cache, tensors, write_single
from loadmaster_hookspecs.errors import IntegrityError, UsageError
from loadmaster_plugins.local_source import loadmaster_sources
from loadmaster_plugins.local_source.provider import LocalProvider
from loadmaster_plugins.local_source.source import LocalSource


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "b.json").write_bytes(b"{}")
    (model / "a.safetensors").write_bytes(bytes(range(100)))
    return model


def names(source: LocalSource) -> list[str]:
    return [entry.name for entry in source.files()]


def test_the_hook_provides_the_local_provider() -> None:
    assert [provider.name for provider in loadmaster_sources()] == ["local"]


class TestClaim:
    def test_folders_and_safetensors_files_are_claimed(self, folder: Path) -> None:
        for path in (folder, folder / "a.safetensors"):
            match = LocalProvider().claim(str(path))
            assert match is not None
            assert match.score == 0.9

    def test_what_does_not_exist_is_claimed_weakly_so_that_the_error_can_explain(self, folder: Path) -> None:
        match = LocalProvider().claim(str(folder / "nothing" / "here"))
        assert match is not None
        assert match.score == 0.1

    @pytest.mark.parametrize("uri", ["s3://bucket/model", "hf://org/name", "a\0b"])
    def test_other_addresses_are_not_claimed(self, uri: str) -> None:
        assert LocalProvider().claim(uri) is None


class TestOpen:
    def test_the_uri_is_absolute_for_relative_paths_and_home(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        for typed in ("model", "./model/", "~/model", str(folder), "x/../model"):
            assert LocalProvider().open(typed).uri == str(folder)

    def test_a_missing_path_says_how_far_it_exists(self, folder: Path) -> None:
        with pytest.raises(UsageError) as caught:
            LocalProvider().open(str(folder / "sub" / "model"))
        assert caught.value.code == "LM-SOURCE-MISSING"
        assert str(folder) in caught.value.report.why
        assert "'sub'" in caught.value.report.why

    def test_a_file_of_another_kind_points_to_its_folder(self, folder: Path) -> None:
        with pytest.raises(UsageError) as caught:
            LocalProvider().open(str(folder / "b.json"))
        assert caught.value.code == "LM-SOURCE-KIND"
        assert str(folder) in caught.value.hints[0]

    def test_a_single_file_hides_other_weights_and_keeps_what_describes_it(self, folder: Path) -> None:
        for other in ("z.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "chat_template.jinja"):
            (folder / other).touch()
        source = LocalProvider().open(str(folder / "a.safetensors"))
        assert names(source) == ["a.safetensors", "b.json", "chat_template.jinja"]
        assert source.uri == str(folder / "a.safetensors")
        assert LocalProvider().open(source.uri).files() == source.files()


class TestListing:
    def test_the_top_level_is_listed_with_sizes_and_sorted(self, folder: Path) -> None:
        for junk in (".git", "original", "metal"):
            (folder / junk).mkdir()
            (folder / junk / "copy.safetensors").touch()
        assert [(entry.name, entry.size) for entry in LocalSource(folder).files()] == [("a.safetensors", 100), ("b.json", 2)]

    def test_pipes_are_not_listed_and_never_waited_for(self, folder: Path) -> None:
        os.mkfifo(folder / "pipe.safetensors")
        source = LocalSource(folder)
        assert "pipe.safetensors" not in names(source)
        for attempt in (lambda: source.read("pipe.safetensors", 0, 8), lambda: source.open("pipe.safetensors")):
            with pytest.raises(IntegrityError, match="LM-FILE-KIND"):
                attempt()

    def test_names_that_are_not_utf8_are_left_out(self, folder: Path) -> None:
        with open(os.fsencode(folder) + b"/\xff.safetensors", "wb"):
            pass
        assert names(LocalSource(folder)) == ["a.safetensors", "b.json"]

    def test_links_to_folders_are_not_files(self, folder: Path, tmp_path: Path) -> None:
        (folder / "linked").symlink_to(tmp_path)
        assert names(LocalSource(folder)) == ["a.safetensors", "b.json"]

    def test_listing_and_reading_write_nothing(self, folder: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}
        source = LocalSource(folder)
        source.files()
        source.read("a.safetensors", 0, 100)
        assert {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]} == before


class TestConfinement:
    @pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "a/../../secret", "", ".", "a//b", "./a", "a\0b", "a/"])
    def test_names_that_leave_the_folder_are_refused(self, folder: Path, tmp_path: Path, name: str) -> None:
        (tmp_path / "secret").write_bytes(b"secret")
        source = LocalSource(folder)
        for attempt in (lambda: source.read(name, 0, 8), lambda: source.open(name), lambda: source.size(name)):
            with pytest.raises(IntegrityError, match="LM-NAME-OUTSIDE"):
                attempt()

    def test_files_in_sub_folders_are_read_by_name(self, folder: Path) -> None:
        (folder / "sub").mkdir()
        (folder / "sub" / "c").write_bytes(b"content")
        assert LocalSource(folder).read("sub/c", 3, 100) == b"tent"
        assert LocalSource(folder).size("sub/c") == 7

    def test_a_link_inside_the_folder_is_followed(self, folder: Path) -> None:
        (folder / "link").symlink_to("a.safetensors")
        assert LocalSource(folder).read("link", 10, 2) == b"\x0a\x0b"
        assert ("link", 100) in [(entry.name, entry.size) for entry in LocalSource(folder).files()]

    @pytest.mark.parametrize("target", ["../secret", "sub"])
    def test_a_link_out_of_the_folder_is_refused(self, folder: Path, tmp_path: Path, target: str) -> None:
        (tmp_path / "secret").write_bytes(b"secret")
        (folder / "sub").symlink_to(tmp_path)
        name = "sub/secret" if target == "sub" else "link"
        (folder / "link").symlink_to(target)
        with pytest.raises(IntegrityError, match="LM-LINK-OUTSIDE") as caught:
            LocalSource(folder).read(name, 0, 8)
        assert caught.value.report.where["target"] == str(tmp_path / "secret")

    def test_a_folder_that_is_itself_a_link_is_fine(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "alias").symlink_to(folder)
        source = LocalSource(tmp_path / "alias")
        assert source.read("b.json", 0, 9) == b"{}"
        assert source.uri == str(tmp_path / "alias")

    def test_a_loop_of_links_is_an_integrity_error(self, folder: Path) -> None:
        (folder / "x").symlink_to("y")
        (folder / "y").symlink_to("x")
        source = LocalSource(folder)
        assert "x" in names(source)
        with pytest.raises(IntegrityError):
            source.read("x", 0, 1)


class TestHubCache:
    def test_links_into_the_blobs_of_the_repository_are_followed(self, tmp_path: Path) -> None:
        snapshot = hub_cache(tmp_path, write_single(tmp_path / "plain"))
        source = LocalSource(snapshot)
        assert names(source) == ["config.json", "model.safetensors"]
        assert source.read("config.json", 0, 1) == b"{"
        single = LocalProvider().open(str(snapshot / "model.safetensors"))
        assert single.size("model.safetensors") == source.size("model.safetensors") > 0

    def test_links_into_the_blobs_of_another_repository_are_refused(self, tmp_path: Path) -> None:
        snapshot = hub_cache(tmp_path, write_single(tmp_path / "plain"))
        foreign = tmp_path / "models--org--other" / "blobs"
        foreign.mkdir(parents=True)
        (foreign / "x").write_bytes(b"x")
        (snapshot / "x").symlink_to(foreign / "x")
        with pytest.raises(IntegrityError, match="LM-LINK-OUTSIDE"):
            LocalSource(snapshot).read("x", 0, 1)

    def test_a_blobs_folder_beside_an_ordinary_folder_gives_no_right(self, tmp_path: Path) -> None:
        (tmp_path / "blobs").mkdir()
        (tmp_path / "blobs" / "x").write_bytes(b"x")
        model = tmp_path / "snapshots" / "rev"
        model.mkdir(parents=True)
        (model / "x").symlink_to("../../blobs/x")
        with pytest.raises(IntegrityError, match="LM-LINK-OUTSIDE"):
            LocalSource(model).read("x", 0, 1)

    def test_a_dangling_link_is_named_with_its_missing_target(self, tmp_path: Path) -> None:
        snapshot = hub_cache(tmp_path, write_single(tmp_path / "plain"))
        blobs = snapshot.parent.parent / "blobs"
        for blob in blobs.iterdir():
            blob.unlink()
        source = LocalSource(snapshot)
        assert [(entry.name, entry.size) for entry in source.files()] == [("config.json", 0), ("model.safetensors", 0)]
        with pytest.raises(IntegrityError, match="LM-LINK-DANGLING") as caught:
            source.read("model.safetensors", 0, 8)
        assert caught.value.report.where == {"link": str(snapshot / "model.safetensors"), "target": str(blobs / "blob01")}


class TestReading:
    def test_reads_are_metered_by_what_they_return(self, folder: Path) -> None:
        source = LocalSource(folder)
        assert source.bytes_read == 0
        assert source.read("a.safetensors", 90, 50) == bytes(range(90, 100))
        assert source.read("a.safetensors", 500, 50) == b""
        source.files()
        assert source.bytes_read == 10

    def test_missing_files_are_named(self, folder: Path) -> None:
        with pytest.raises(IntegrityError, match="LM-FILE-MISSING") as caught:
            LocalSource(folder).open("model.safetensors")
        assert caught.value.report.where["file"] == str(folder / "model.safetensors")

    def test_a_folder_is_not_a_file(self, folder: Path) -> None:
        (folder / "sub").mkdir()
        with pytest.raises(IntegrityError, match="LM-FILE-KIND"):
            LocalSource(folder).open("sub")

    def test_an_operating_system_error_becomes_an_integrity_error(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(IntegrityError, match="LM-FILE-UNREADABLE") as caught:
            LocalSource(folder).read("b.json", 0, 1)
        assert caught.value.report.why == "Permission denied"

    def test_a_range_is_read_into_the_view_and_short_only_at_the_end(self, folder: Path) -> None:
        reader = LocalSource(folder).open("a.safetensors")
        buffer = bytearray(20)
        assert reader.read_into(30, memoryview(buffer)) == 20
        assert buffer == bytes(range(30, 50))
        assert reader.read_into(95, memoryview(buffer)) == 5
        assert buffer[:5] == bytes(range(95, 100))
        reader.close()

    def test_short_reads_are_continued(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = os.preadv
        monkeypatch.setattr(os, "preadv", lambda fd, views, offset: whole(fd, [views[0][:7]], offset))
        source = LocalSource(folder)
        assert source.read("a.safetensors", 1, 50) == bytes(range(1, 51))

    def test_the_mapping_shows_the_file_and_writes_stay_in_this_process(self, folder: Path) -> None:
        reader = LocalSource(folder).open("a.safetensors")
        view = reader.mapping()
        assert bytes(view) == bytes(range(100))
        assert reader.mapping() is view
        view[0] = 0xEE
        assert bytes(view) == b"\xee" + bytes(range(1, 100))
        assert (folder / "a.safetensors").read_bytes() == bytes(range(100))
        reader.close()
        reader.close()

    def test_the_mapping_is_shared_with_the_page_cache(self, folder: Path) -> None:
        reader = LocalSource(folder).open("a.safetensors")
        view = reader.mapping()
        with open(folder / "a.safetensors", "r+b") as file:
            file.write(b"\xff")
        assert view[0] == 0xFF
        reader.close()

    def test_a_part_that_is_still_held_survives_close(self, folder: Path) -> None:
        reader = LocalSource(folder).open("a.safetensors")
        part = np.frombuffer(reader.mapping(), dtype=np.uint8)[10:12]
        reader.close()
        assert part.tolist() == [10, 11]

    def test_an_empty_file_maps_to_nothing(self, folder: Path) -> None:
        (folder / "empty").touch()
        reader = LocalSource(folder).open("empty")
        assert reader.mapping().nbytes == 0
        reader.close()

    def test_descriptors_are_closed(self, folder: Path) -> None:
        write_single(folder, tensors())
        source = LocalSource(folder)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            source.read("model.safetensors", 0, 8)
            source.open("model.safetensors").close()
        assert len(os.listdir("/proc/self/fd")) == before
