"""What the process that forks workers imports before it does."""

import transformers.models.llama.modeling_llama  # noqa: F401

import sharegen.engine.parallel.rank
import sharegen.engine.parallel.worker
import sharegen.serve.http_process  # noqa: F401
