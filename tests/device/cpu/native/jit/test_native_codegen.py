"""What processes that compile change in numba."""

from __future__ import annotations

from types import SimpleNamespace

from partita_cpu.jit import codegen


def test_types_of_built_in_functions_are_found_once():
    asked = []

    class Function:
        typing_key = "+"

        def get_call_type(self, context, args, named):
            asked.append((args, named))
            return None if args == ("nothing",) else SimpleNamespace(args=args)

        def get_impl_key(self, signature):
            return "compiled for the caller" if signature.args == ("tuple",) else "+"

    codegen.remember_types(Function)
    function = Function()
    for args, named, times in [
        (("int", "int"), {}, 1),
        (("int", "float"), {}, 1),
        (("tuple",), {}, 2),
        (("nothing",), {}, 2),
        (("int", "int"), {"key": "int"}, 2),
    ]:
        asked.clear()
        found = [function.get_call_type(None, args, named) for _ in range(2)]
        assert len(asked) == times
        assert all(sig is None if args == ("nothing",) else sig.args == args for sig in found)
    assert Function().get_call_type(None, ("int", "int"), {}).args == ("int", "int")
