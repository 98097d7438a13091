"""Parallelism in typed collectives: small parts that a model's plan puts together.

    model = llama_plan.parallelize(llama.Llama(config), mesh, llama_plan.Plan(sequence=True))

    @ls.compile(mesh=mesh, data=parallel.layout(model).data)
    def train_step(model, optimizer, tokens, labels):
        loss = parallel.forward_backward(model, tokens, labels, micro_batches=4)
        parallel.reduce_grads(model)
        norm = parallel.clip_grad_norm(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss, norm

Every loss is a rank's share of a mean over all tokens of the job, so that every reduction is a sum.
A plan says once how each parameter lies (`placements(model)`); what cuts, reduces, clips, checks
and saves parameters reads it there.
"""

from lockstep.parallel.accumulation import forward_backward as forward_backward
from lockstep.parallel.clip import clip_grad_norm as clip_grad_norm
from lockstep.parallel.clip import grad_norm as grad_norm
from lockstep.parallel.data import reduce_grads as reduce_grads
from lockstep.parallel.fully_sharded import fully_shard as fully_shard
from lockstep.parallel.layout import Layout as Layout
from lockstep.parallel.layout import layout as layout
from lockstep.parallel.loss import token_count as token_count
from lockstep.parallel.loss import token_mean as token_mean
from lockstep.parallel.pipeline import Pipe as Pipe
from lockstep.parallel.pipeline import Stage as Stage
from lockstep.parallel.pipeline import pipeline_loss as pipeline_loss
from lockstep.parallel.pipeline import pipeline_step as pipeline_step
from lockstep.parallel.placement import Placed as Placed
from lockstep.parallel.placement import place as place
from lockstep.parallel.placement import placements as placements
from lockstep.parallel.precision import compute_in as compute_in
from lockstep.parallel.recompute import recompute as recompute
