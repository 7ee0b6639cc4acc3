"""Says which plugin an exception came from."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from loadmaster.host.info import PluginInfo
from loadmaster_hookspecs import LoadmasterError, PluginError


@contextmanager
def attributed(plugin: PluginInfo, hook: str, call: str = "", expected: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Run code of `plugin`; an exception leaves as a PluginError that names plugin, version and hook.

    `call` names the method when the code is one of an object that the hook returned. A LoadmasterError is meant for the user
    and passes unchanged; what the contract lets the method raise (`expected`) and an interrupt pass too.
    """
    passing: tuple[type[Exception], ...] = (LoadmasterError, *expected)
    try:
        yield
    except passing:
        raise
    except (Exception, SystemExit) as error:  # boundary: code of a plugin
        place = {**plugin.location, "hook": hook} | ({"call": call} if call else {})
        raise PluginError(
            "LM-PLUGIN-FAILED",
            f"plugin {plugin.label} failed in {call or hook}",
            where=place,
            why=one_line(error),
            hints=(plugin.remedy,),
            traceback=traceback_text(error),
        ) from error


def one_line(error: BaseException) -> str:
    """Return type and message of an exception on one line."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an exception as Python prints it, without the frames of Python's own import machinery."""
    summary = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in summary.stack if "importlib" not in frame.filename]
    summary.stack = traceback.StackSummary.from_list(frames)
    return "".join(summary.format())
