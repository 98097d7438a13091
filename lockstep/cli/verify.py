"""`lockstep verify`: whether an artifact is whole, sound, and of whom it should be."""

from __future__ import annotations

from pathlib import Path

from lockstep.cli.files import readable


def verify(file: Path, /) -> int:
    """Verify every byte of an artifact or a bundle; nothing in it is executed.

    Digests, limits, the manifest's form, the signature (by LOCKSTEP_TRUST where it is set), and
    that the byte code is what the program's text compiles to.

    Args:
        file: the artifact, or the bundle.
    """
    path = readable(file, "an artifact")
    from lockstep.build.describe import printable
    from lockstep.build.inspect import inspect, signer, size_text

    seen = inspect(path)
    lines = seen.head()
    for one in seen.artifacts:
        lines.append(f"  holds     {one.name}, {size_text(one.size)}, step {one.step}")
        lines.append(f"            signed {signer(one.signed)}")
    same = {True: "what the text compiles to", None: "none of this interpreter's"}
    if not seen.artifacts:
        lines.append(f"  byte code {same[seen.byte_code]}")
    print(printable("\n".join(lines)))
    return 0
