"""Weights that go to a GPU in pieces."""

import pytest
import torch
from torch import nn

from sharegen.engine.model.starting.moving import Pieces, move_to

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [8, 24, 64, 1 << 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
def test_tensors_come_through_in_pieces_of_any_size(size, dtype):
    pieces = Pieces(CPU, size)
    for shape in ((3, 5), (1,), (), (0, 4)):
        source = torch.arange(15.0)[: torch.Size(shape).numel()].view(shape).to(dtype)
        moved = pieces.copy(source)
        assert (moved.shape, moved.dtype) == (source.shape, dtype)
        assert torch.equal(moved.float(), source.float())
        assert moved.data_ptr() != source.data_ptr() or not source.numel()
    pieces.wait()


@pytest.mark.parametrize("size", [8, 40, 1 << 12])
def test_parts_of_tensors_come_through_into_parts_of_others(size):
    source = torch.arange(210.0).view(5, 6, 7)
    pieces = Pieces(CPU, size)
    assert torch.equal(pieces.copy(source[1:, :, 2:5]), source[1:, :, 2:5])
    target = torch.zeros(6, 5, 3, dtype=torch.bfloat16)
    pieces.fill(target.transpose(0, 1), source[..., 4:])
    assert torch.equal(target.float(), source[..., 4:].transpose(0, 1).bfloat16().float())


def test_a_cpu_s_model_stays_where_it_is():
    model = nn.Linear(4, 4)
    weight = model.weight
    assert move_to(model, CPU) is model and model.weight is weight


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_on_a_gpu_is_what_it_was():
    model = nn.Sequential(nn.Linear(2048, 3000), nn.Linear(3000, 2048), nn.BatchNorm1d(2048))
    model[1].weight = nn.Parameter(torch.randn(3000, 2048).T)  # not contiguous
    model.tied = model[0].weight
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    moved = move_to(model, torch.device("cuda"))
    assert moved.tied is moved[0].weight
    for name, tensor in moved.state_dict().items():
        assert tensor.device.type == "cuda" and torch.equal(tensor.cpu(), expected[name]), name
