"""Intersection over union of boxes and a greedy suppression of those that overlap."""

import torch


def program(device):
    boxes = torch.tensor([[0.0, 0, 4, 4], [1, 1, 5, 5], [6, 6, 8, 8], [0, 0, 4, 3]]).to(device)
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6]).to(device)
    low = torch.max(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.min(boxes[:, None, 2:], boxes[None, :, 2:])
    inter = (high - low).clamp(min=0).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    iou = inter / (area[:, None] + area[None] - inter)
    keep = torch.ones(4, dtype=torch.bool, device=device)
    for i in scores.argsort(descending=True).tolist():
        if keep[i]:
            keep &= ~((iou[i] > 0.5) & (torch.arange(4, device=device) > i))
    return iou, keep, boxes[keep]
