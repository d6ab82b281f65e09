"""sharegen as the rollout of TRL's GRPOTrainer: it samples from the very module that is trained.

    from sharegen.trl import rollout
    GRPOTrainer(model, reward_funcs=reward, train_dataset=rows, rollout_func=rollout).train()

There is no second copy of the weights and nothing to synchronise. The samples of a prompt are one
node of the sharing tree, and each drawn token comes with its log-probability.
"""

from __future__ import annotations

from sharegen.trl.rollouts import Rollout, rollout

__all__ = ["Rollout", "rollout"]
