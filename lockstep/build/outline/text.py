"""One program text of many: each body a function that makes its own names, then the driver."""

from __future__ import annotations

import ast

from lockstep.build.outline.driver import BODY


def program_text(bodies: list[str], driver: str) -> str:
    """Put module texts, each of which defines `call`, and a driver that calls them into one text.

    Args:
        bodies: in the order of their numbers.
        driver: text that calls them as `body_0`, `body_1`, ...
    """
    made: list[ast.stmt] = []
    for at, text in enumerate(bodies):
        name = BODY.format(at)
        inner = [*ast.parse(text).body, *ast.parse("return call", mode="exec").body]
        (outer,) = ast.parse(f"def {name}(): ...").body
        assert isinstance(outer, ast.FunctionDef)
        outer.body = inner
        # The name of what makes a body becomes that of the body, as a decorator would do it.
        made += [outer, *ast.parse(f"{name} = {name}()").body]
    module = ast.Module([*made, *ast.parse(driver).body], type_ignores=[])
    return ast.unparse(ast.fix_missing_locations(module)) + "\n"
