"""What PyTorch takes beside its tensors, stage by stage; says each stage's name and waits for a line."""

import torch


def main() -> None:
    def stage(name: str) -> None:
        torch.cuda.synchronize()
        print(name, flush=True)
        input()

    torch.zeros(1, device="cuda")
    stage("context")
    left = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    left = left @ left
    stage("cublas")
    images = torch.randn(8, 64, 64, 64, device="cuda")
    torch.nn.functional.conv2d(images, torch.randn(64, 64, 3, 3, device="cuda"))
    stage("cudnn")
    torch.linalg.eigh(torch.randn(256, 256, device="cuda"))
    stage("cusolver")
    pieces = [torch.ones(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2)]
    stage("tensors")
    print(len(pieces), float(left[0, 0]), flush=True)


main()
