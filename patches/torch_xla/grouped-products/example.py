"""Three tokens, of which the first two go to one expert and the last to another."""

import subprocess
import sys

# README: begin
PROGRAM = """
import torch
import torch_xla

tokens = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).to("xla")
experts = torch.stack([torch.eye(2), 10 * torch.eye(2)]).to("xla")
ends = torch.tensor([2, 3], dtype=torch.int32).to("xla")
print(torch._grouped_mm(tokens, experts, offs=ends).tolist())
"""
done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=False)
print(done.stdout.strip() or f"the process is ended by signal {-done.returncode}")
# README: end
