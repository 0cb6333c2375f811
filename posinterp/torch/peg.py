"""The positional encoding generator (PEG): a depth-wise convolution on the token grid, whose zero border says where.

Source: Conditional Positional Encodings for Vision Transformers, arXiv 2102.10882; the module is PosCNN of Twins
(Meituan-AutoML/Twins, gvt.py), which timm's twins.py has too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..pegging import check_kernel


class PEG(nn.Module):
    """x + conv(x) on the grid of patch tokens. Tokens before and behind the grid pass through untouched.

    It starts as the identity: weight and bias are zero. Twins draws them with a standard deviation of 0.47, which a
    trained network does not survive.

    Args:
        dim: channels of a token.
        kernel: side of the convolution, odd. The padding is kernel // 2 zeros; any other padding would take away what
            tells the places apart.

    Raises:
        BadUsage: if the kernel is not odd and positive.
    """

    def __init__(
        self, dim: int, kernel: int = 3, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        check_kernel(kernel)
        self.proj = nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The identity. timm's ways to initialise a whole model call it by either name, after the convolution's own."""
        nn.init.zeros_(self.proj.weight)
        if self.proj.bias is not None:
            nn.init.zeros_(self.proj.bias)

    init_weights = reset_parameters

    def forward(self, x: Tensor, grid: tuple[int, int], prefix: int = 0) -> Tensor:
        """
        Args:
            x: (B, prefix + h·w + suffix, C).
            grid: (h, w), said at every call: a module that remembered it would take the wrong one where gradient
                checkpointing runs it again.
            prefix: how many tokens stand before the grid; those left over stand behind it.

        Returns:
            (B, prefix + h·w + suffix, C).
        """
        h, w = grid
        patches = x[:, prefix : prefix + h * w]
        # Tokens are an image in channels-last layout already: a view, where (B, C, h, w) would be a copy.
        image = patches.reshape(x.shape[0], h, w, -1).permute(0, 3, 1, 2)  # (B, C, h, w)
        moved: Tensor = patches + self.proj(image).permute(0, 2, 3, 1).flatten(1, 2)  # (B, h·w, C)
        if patches.shape == x.shape:
            return moved  # no copy, and the memory layout stays: a mean over tokens rounds by it
        return torch.cat([x[:, :prefix], moved, x[:, prefix + h * w :]], dim=1)
