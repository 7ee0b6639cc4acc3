"""A pickle machine that knows what `torch.save` writes for a table of tensors, and nothing else.

Nothing is imported and nothing is called: names stand for themselves, and what would be a call is kept as a record of it. Every
instruction that is not listed here is refused, before anything behind it is looked at. Values are never walked through, printed
or compared, since a few bytes can describe one that would take forever.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from loadmaster_hookspecs.errors import IntegrityError

DICT: Final = "collections OrderedDict"
TENSOR: Final = "torch._utils _rebuild_tensor_v2"
PARAMETER: Final = "torch._utils _rebuild_parameter"

STORAGES: Final[Mapping[str, str]] = {
    "torch DoubleStorage": "F64",
    "torch FloatStorage": "F32",
    "torch HalfStorage": "F16",
    "torch BFloat16Storage": "BF16",
    "torch LongStorage": "I64",
    "torch IntStorage": "I32",
    "torch ShortStorage": "I16",
    "torch CharStorage": "I8",
    "torch ByteStorage": "U8",
    "torch BoolStorage": "BOOL",
}
"""The names of torch's storages, and their element types."""

ALLOWED: Final = frozenset({DICT, TENSOR, PARAMETER, *STORAGES})

VALUES: Final = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
"""Instructions that put their argument on the stack."""

CONSTANTS: Final[Mapping[str, Any]] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
SIZES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Name(NamedTuple):
    """A name that the pickle speaks of; one of `ALLOWED`."""

    text: str


class Call(NamedTuple):
    """What would be a call of a name."""

    name: str
    arguments: tuple[Any, ...]


class Reference(NamedTuple):
    """What stands for an object that lies outside of the pickle: a storage."""

    key: Any


class _Mark:
    """Where the values of a tuple, or of a table's entries, begin on the stack."""


def run(pickle: bytes) -> Any:
    """Return what the pickle describes: tables, tuples, numbers, texts, `Name`, `Call` and `Reference`.

    Raises IntegrityError LM-ARCHIVE-PICKLE for anything else.
    """
    machine = _Machine()
    try:
        for opcode, argument, position in pickletools.genops(pickle):
            if opcode.name == "STOP":
                (result,) = machine.stack
                return result
            machine.step(opcode.name, argument, position)
    except (ValueError, IndexError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise refused(f"it is damaged: {error}") from None
    raise refused("it does not end")


def refused(why: str) -> IntegrityError:
    """Return the error for a pickle that is more than a table of tensors."""
    return IntegrityError(
        "LM-ARCHIVE-PICKLE",
        "the file's pickle is not a plain table of tensors",
        why=why,
        hints=("do not load this file with torch.load: a pickle can run any code that its author put into it",),
    )


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any, position: int | None) -> None:
        """Execute one instruction."""
        if name in VALUES:
            self.stack.append(argument)
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in SIZES:
            self.stack[-SIZES[name] :] = [self._values(tuple(self.stack[-SIZES[name] :]), SIZES[name])]
        elif (handler := HANDLERS.get(name)) is not None:
            handler(self, argument)
        else:
            raise refused(f"instruction {name} at byte {position}")

    def nothing(self, _argument: Any) -> None:
        """Protocol and frames."""

    def table(self, _argument: Any) -> None:
        self.stack.append({})

    def mark(self, _argument: Any) -> None:
        self.stack.append(_Mark())

    def row(self, _argument: Any) -> None:
        self.stack.append(tuple(self._from_mark()))

    def put(self, argument: int) -> None:
        self._memo[argument] = self._last()

    def memoize(self, _argument: Any) -> None:
        self._memo[len(self._memo)] = self._last()

    def get(self, argument: int) -> None:
        self.stack.append(self._memo[argument])

    def named(self, argument: str) -> None:
        self.stack.append(_allowed(argument))

    def stack_named(self, _argument: Any) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise refused("a name that is no text")
        self.stack.append(_allowed(f"{module} {name}"))

    def persistent(self, _argument: Any) -> None:
        self.stack.append(Reference(self._pop()))

    def reduce(self, _argument: Any) -> None:
        arguments, name = self._pop(), self._pop()
        if not isinstance(name, Name) or not isinstance(arguments, tuple):
            raise refused("a call of something that is no name")
        if name.text == DICT:
            if arguments:
                raise refused(f"{DICT} with arguments")
            self.stack.append({})
        elif name.text in (TENSOR, PARAMETER):
            self.stack.append(Call(name.text, arguments))
        else:
            raise refused(f"a call of {name.text}")

    def set_item(self, _argument: Any) -> None:
        value, key = self._pop(), self._pop()
        self._fill([key, value])

    def set_items(self, _argument: Any) -> None:
        self._fill(self._from_mark())

    def build(self, _argument: Any) -> None:
        """Attributes of a table, as state dictionaries have: versions of modules, which say nothing of tensors."""
        state = self._pop()
        if not isinstance(state, dict) or not isinstance(self._last(), dict):
            raise refused("attributes of something that is no table")

    def _fill(self, items: list[Any]) -> None:
        table = self._last()
        if not isinstance(table, dict) or len(items) % 2:
            raise refused("entries of something that is no table")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str):
                raise refused(f"a table with a {type(key).__name__} as a key")
            if key in table:
                raise refused(f"a table with the key {key[:200]!r} twice")
            table[key] = value

    def _from_mark(self) -> list[Any]:
        values: list[Any] = []
        while not isinstance(value := self.stack.pop(), _Mark):
            values.append(value)
        return values[::-1]

    def _pop(self) -> Any:
        return self._values((self.stack.pop(),), 1)[0]

    def _last(self) -> Any:
        return self._values((self.stack[-1],), 1)[0]

    def _values(self, values: tuple[Any, ...], count: int) -> tuple[Any, ...]:
        if len(values) != count or any(isinstance(value, _Mark) for value in values):
            raise refused("an instruction lacks its values")
        return values


def _allowed(text: str) -> Name:
    if text not in ALLOWED:
        raise refused(f"it names {text[:200]!r}")
    return Name(text)


HANDLERS: Final[Mapping[str, Callable[[_Machine, Any], None]]] = {
    "PROTO": _Machine.nothing,
    "FRAME": _Machine.nothing,
    "EMPTY_DICT": _Machine.table,
    "MARK": _Machine.mark,
    "TUPLE": _Machine.row,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "GLOBAL": _Machine.named,
    "STACK_GLOBAL": _Machine.stack_named,
    "BINPERSID": _Machine.persistent,
    "REDUCE": _Machine.reduce,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "BUILD": _Machine.build,
}
"""The other instructions that are known."""
