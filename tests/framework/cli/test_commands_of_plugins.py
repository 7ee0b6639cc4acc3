from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import Invoke
from fake_distribution import FakeSite, fake_site
from loadmaster.cli.third_party import third_party_distributions

GREET = """
    import click
    from loadmaster_hookspecs import hookimpl

    @click.command()
    @click.option("--code", type=int, default=0)
    @click.pass_context
    def greet(context, code):
        \"\"\"Greet the crew.\"\"\"
        click.echo("hello")
        context.exit(code)

    @click.command()
    def count():
        \"\"\"Return a number, which is no exit code.\"\"\"
        return 7

    @hookimpl
    def loadmaster_commands():
        return [greet, count]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    third_party_distributions.cache_clear()
    with fake_site(tmp_path / "site", monkeypatch) as folder:
        yield folder
    third_party_distributions.cache_clear()


@pytest.fixture
def acme(site: FakeSite) -> FakeSite:
    site.install("acme-greeting", "1.0", {"greeting": "acme_greeting"}, {"acme_greeting": GREET})
    return site


def test_a_plugin_adds_a_command(invoke: Invoke, acme: FakeSite) -> None:
    outcome = invoke("greet")
    assert (outcome.code, outcome.out) == (0, "hello\n")


def test_its_exit_code_counts_and_its_return_value_does_not(invoke: Invoke, acme: FakeSite) -> None:
    assert invoke("greet", "--code", "3").code == 3
    assert invoke("count").code == 0


def test_the_help_lists_it(invoke: Invoke, acme: FakeSite) -> None:
    outcome = invoke("--help")
    assert "Commands of plugins:\n  count  Return a number, which is no exit code.\n  greet  Greet the crew.\n" in outcome.out


def test_it_is_gone_without_third_party_plugins(invoke: Invoke, acme: FakeSite) -> None:
    assert "greet" not in invoke("--no-plugins", "--help").out
    assert invoke("--no-plugins", "greet").code == 2


def test_our_own_commands_do_not_ask_plugins(invoke: Invoke, site: FakeSite) -> None:
    site.install("acme-trap", "1.0", {"trap": "acme_trap"}, {"acme_trap": "raise SystemExit('imported')"})
    outcome = invoke("plan", "--help")
    assert outcome.code == 0
    assert "imported" not in outcome.err


def test_a_conflict_of_plugins_leaves_the_help_readable(invoke: Invoke, site: FakeSite) -> None:
    for distribution in ("acme", "bolt"):
        module = f"{distribution}_module"
        site.install(distribution, "1.0", {"same": module}, {module: ""})
    outcome = invoke("--help")
    assert outcome.code == 0
    assert "not known: 2 installed plugins are called 'same'" in outcome.out
    assert invoke("unknown-name").code == 4


def test_the_quick_look_finds_other_distributions_only(site: FakeSite) -> None:
    assert "acme_quick" not in third_party_distributions()
    third_party_distributions.cache_clear()
    site.install("acme-quick", "1.0", {"quick": "acme_quick"})
    assert "acme_quick" in third_party_distributions()
    assert "loadmaster" not in third_party_distributions()
