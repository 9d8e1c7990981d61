"""The scope of an operator in the text of the IR, after operators that were made without debugging."""

import torch
import torch_xla

x = torch.ones(2, device=torch_xla.device())
# README: begin
for _ in range(3):
    x + 1
torch_xla._XLAC._set_ir_debug(True)
text = torch_xla._XLAC._get_xla_tensors_text([x + 1])
print("aten::add.1" in text)
# README: end
