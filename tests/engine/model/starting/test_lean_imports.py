"""What is left out of transformers on a CPU, seen in processes of their own."""

import subprocess
import sys

import pytest

_LEFT_OUT = (
    "torch._dynamo.symbolic_convert",
    "torch.distributed.tensor",
    "sympy.core",
    "scipy.optimize",
    "transformers.image_transforms",
)

_LEAN = f"""
import importlib.util
import sys
from sharegen.engine.model.starting.lean_imports import import_transformers

import_transformers()
import torch
import transformers
from torch.distributed import is_available

assert is_available() and "lambda" not in repr(is_available)
config = transformers.LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
    num_attention_heads=2,
)
with torch.device("meta"):  # whose operations ask for the compiler's marks, and what is symbolic
    transformers.AutoModelForCausalLM.from_config(config)
    assert (torch.ones(3, 1) * 2.0 + torch.ones(2)).shape == (3, 2)
found = [name for name in {_LEFT_OUT!r} if name in sys.modules]
assert not found, found
tokens = torch.arange(12).reshape(2, 6)
mask = torch.ones(2, 6, dtype=torch.long)
mask[0, :2] = 0
logits = {{}}
assert "torch._dynamo.symbolic_convert" not in sys.modules
for own in ("eager", "sdpa"):  # masks of SDPA are made with what was left out
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=own).eval()
    logits[own] = model(tokens, attention_mask=mask).logits[:, 2:]
torch.testing.assert_close(logits["eager"], logits["sdpa"])
assert importlib.util.find_spec("sympy").origin.endswith("__init__.py")
from sympy import Basic, Integer

assert isinstance(Integer(1), Basic)
from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false

assert guard_or_false.__module__ == ShapeEnv.__module__
size = ShapeEnv().create_unbacked_symint()
torch._check(size > 1)
with torch.device("meta"):  # torch asks SymPy's and its own from here on
    assert torch.ones(2, 3).reshape(3, 2).shape == (3, 2)
assert torch.compile(lambda x: x + 1, backend="eager")(tokens).sum() == tokens.sum() + 12
import torch._dynamo.eval_frame

assert torch.compiler.disable(lambda: 1)() == 1
"""

_A_USERS_OWN = """
import importlib.util
import sys
import types
from sharegen.engine.model.starting.lean_imports import import_transformers

import_transformers(shards=True)
import torch
import transformers

for name in ("torch._dynamo", "transformers.processing_utils", "transformers.video_utils"):
    assert importlib.util.find_spec(name).name == name and hasattr(sys.modules[name], "leave")
assert "torch.distributed.tensor" in sys.modules
assert "torch._dynamo.symbolic_convert" not in sys.modules and "scipy.optimize" not in sys.modules


@torch.compiler.disable
def untraced(x):
    return x + 1


@torch.compiler.allow_in_graph
def whole(x):
    return x + 2


def both(x):
    return whole(untraced(x * 3))


assert "torch._dynamo.symbolic_convert" not in sys.modules and untraced(1) == 2 and whole(1) == 3
graphs = []


def backend(graph, _):
    graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
    return graph.forward


assert torch.compile(both, backend=backend)(torch.ones(2)).tolist() == [6.0, 6.0]
assert len(graphs) == 2 and graphs[1] == [whole], graphs
from transformers.loss.loss_utils import LOSS_MAPPING

found = LOSS_MAPPING["ForObjectDetection"]
assert "transformers.loss.loss_for_object_detection" not in sys.modules
try:
    found()
except TypeError as error:
    assert "ForObjectDetectionLoss() missing" in str(error)
assert "transformers.loss.loss_for_object_detection" in sys.modules
from transformers.processing_utils import ProcessorMixin
from transformers.video_utils import VideoMetadata, VideoMetadataType
from transformers import image_utils, processing_utils

assert ProcessorMixin is processing_utils.ProcessorMixin and VideoMetadataType is not None
assert isinstance(image_utils, types.ModuleType) and image_utils.ChannelDimension("channels_first")
"""

_NEEDS_MORE = """
import sys
from importlib.abc import MetaPathFinder

from sharegen.engine.model.starting.lean_imports import import_transformers


class NeedsMore(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        found = sys.modules.get("torch._dynamo")
        if name == "transformers.safetensors_conversion" and hasattr(found, "leave"):
            raise ImportError("the stand-in will not do")


sys.meta_path.insert(0, NeedsMore())
import_transformers()
import torch.distributed
import transformers

assert "torch._dynamo" in sys.modules and "torch.distributed.tensor" in sys.modules
assert torch.distributed.is_available()
assert transformers.utils.is_torch_distributed_available()
assert sys.modules["transformers"].modeling_utils is sys.modules["transformers.modeling_utils"]
"""


@pytest.mark.slow
def test_a_model_computes_without_what_is_left_out_which_comes_when_it_is_used():
    subprocess.run([sys.executable, "-c", _LEAN], check=True, timeout=250)


@pytest.mark.slow
def test_a_transformers_that_needs_more_is_imported_whole():
    subprocess.run([sys.executable, "-c", _NEEDS_MORE], check=True, timeout=250)


@pytest.mark.slow
def test_in_a_users_own_process_all_is_there_when_it_is_asked_for():
    subprocess.run([sys.executable, "-c", _A_USERS_OWN], check=True, timeout=250)
