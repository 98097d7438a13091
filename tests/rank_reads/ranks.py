"""The script of one rank: every portable way under `graph`, against eager on this rank."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import lockstep as ls
from lockstep._compat import pytree
from tests.rank_reads import before, library, vocab
from tests.rank_reads.judge import MESH, PORTABLE, X, same
from tests.ranks.launch import Here

here = Here()
mesh = ls.mesh("cpu", **MESH)
library.initialize(mesh.get_group("tp"))


def compiled(step: Any) -> Any:
    return ls.compile(mesh=mesh, backend="graph", check="off")(step)


equal: dict[str, bool] = {}
for form in PORTABLE:
    torch.manual_seed(0)
    eager = pytree.tree_leaves(form(X.clone(), mesh))
    torch.manual_seed(0)
    got = pytree.tree_leaves(compiled(form)(X.clone(), mesh))
    equal[form.__name__] = len(got) == len(eager) and all(map(same, got, eager))

for make in before.FORMS:
    results = []
    for way in (lambda step: step, compiled):
        function, args = make(mesh)
        result = way(function)(*args)
        grads = [
            p.grad for model in args if isinstance(model, nn.Module) for p in model.parameters()
        ]
        results.append([*pytree.tree_leaves(result), *grads])
    eager, got = results
    equal[make.__name__] = len(got) == len(eager) and all(map(same, got, eager))

for kind in (vocab.Vocab, vocab.EarlyVocab):
    torch.manual_seed(0)
    model = kind(mesh)
    twin = copy.deepcopy(model.state_dict())
    eager = vocab.train(vocab.vocabulary, model)
    model.load_state_dict(twin)
    got = vocab.train(compiled(vocab.vocabulary), model)
    equal[kind.__name__] = len(got) == len(eager) and all(map(same, got, eager))
here.result({"equal": equal})
