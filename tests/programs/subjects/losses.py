"""Programs: losses."""

import torch
import torch.nn.functional as F
from torch import nn


def bf16_loss_of_many_classes(device):
    """A bfloat16 loss over 4,096 classes: its gradient is as near to float64's as the CPU's (pytorch/xla#8545)."""
    logits, labels = (torch.randn(8, 4096) * 3).bfloat16(), torch.randint(0, 4096, (8,))
    exact = logits.double().requires_grad_()
    F.cross_entropy(exact, labels).backward()
    found = logits.to(device).requires_grad_()
    loss = F.cross_entropy(found, labels.to(device))
    loss.backward()
    error = (found.grad.cpu().double() - exact.grad).norm() / exact.grad.norm()
    return loss, bool(error < 1e-2)


def binary_cross_entropy(device):
    """binary_cross_entropy of saturated probabilities, and with logits and positive weights."""
    p = torch.tensor([0.0, 1.0, 0.3, 0.9]).to(device).requires_grad_()
    y = torch.tensor([1.0, 0.0, 1.0, 1.0]).to(device)
    loss = F.binary_cross_entropy(p, y)
    loss.backward()
    x = torch.tensor([-90.0, 90.0, 0.2, -0.4]).to(device).requires_grad_()
    other = F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.tensor([3.0]).to(device))
    other.backward()
    return loss, p.grad, other, x.grad


def contrastive_clip(device):
    """CLIP's contrastive loss: normalized features, a learnt temperature, both directions."""
    image, text = (torch.randn(4, 16).to(device).requires_grad_() for _ in range(2))
    scale = nn.Parameter(torch.tensor(2.6593).to(device))
    logits = scale.exp().clamp(max=100) * F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).t()
    labels = torch.arange(4, device=device)
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
    loss.backward()
    return loss, image.grad, text.grad, scale.grad


def cross_entropy_all_ignored(device):
    """A batch whose labels are all ignored: the mean over nothing is NaN, and the gradient zero."""
    logits = torch.randn(4, 7).to(device).requires_grad_()
    labels = torch.full((4,), -100).to(device)
    mean = F.cross_entropy(logits, labels)
    total = F.cross_entropy(logits, labels, reduction="sum")
    total.backward()
    return mean, total, logits.grad


def cross_entropy_of_pixels(device):
    """cross_entropy of an image's pixels, with an ignored class: segmentation."""
    logits = torch.randn(2, 4, 5, 5).to(device).requires_grad_()
    labels = torch.randint(0, 4, (2, 5, 5))
    labels[0, 0] = 255
    loss = F.cross_entropy(logits, labels.to(device), ignore_index=255)
    loss.backward()
    return loss, logits.grad


def cross_entropy_probabilities(device):
    """cross_entropy with probabilities as labels, as mixup gives them."""
    logits = torch.randn(4, 7).to(device).requires_grad_()
    one_hot = F.one_hot(torch.tensor([0, 3, 6, 2]), 7).float().to(device)
    mixed = 0.7 * one_hot + 0.3 * one_hot.flip(0)
    loss = F.cross_entropy(logits, mixed, label_smoothing=0.05)
    loss.backward()
    return loss, logits.grad


def cross_entropy_with_weights(device):
    """cross_entropy with class weights, label smoothing and an ignored label, and its gradient."""
    logits = torch.randn(6, 5).to(device).requires_grad_()
    labels = torch.tensor([0, 1, -100, 3, 4, 2]).to(device)
    weight = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.1]).to(device)
    loss = F.cross_entropy(logits, labels, weight=weight, label_smoothing=0.1)
    loss.backward()
    return loss, logits.grad


def ctc_loss(device):
    """CTC loss of a speech model, with lengths of inputs and targets."""
    logits = torch.randn(12, 2, 6).to(device).requires_grad_()
    targets = torch.tensor([[1, 2, 3], [2, 2, 0]]).to(device)
    loss = nn.CTCLoss()(
        logits.log_softmax(-1), targets, input_lengths=torch.tensor([12, 10]), target_lengths=torch.tensor([3, 2])
    )
    loss.backward()
    return loss, logits.grad


def dice(device):
    """Dice loss of a segmentation's classes."""
    x = torch.randn(2, 3, 6, 6).to(device).requires_grad_()
    y = torch.randint(0, 3, (2, 6, 6)).to(device)
    p, t = x.softmax(1), F.one_hot(y, 3).permute(0, 3, 1, 2).float()
    overlap, total = (p * t).sum((0, 2, 3)), p.sum((0, 2, 3)) + t.sum((0, 2, 3))
    loss = 1 - (2 * overlap / (total + 1e-6)).mean()
    loss.backward()
    return loss, x.grad


def dpo_log_probabilities(device):
    """DPO: log-probabilities of chosen and rejected answers, by gather with masked labels."""
    logits = torch.randn(4, 7, 11).to(device).requires_grad_()
    labels = torch.randint(0, 11, (4, 7))
    labels[:, :2] = -100
    labels = labels.to(device)[:, 1:].clone()
    mask = labels != -100
    labels[~mask] = 0
    each = torch.gather(logits[:, :-1].log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    sums = (each * mask).sum(-1)
    loss = -F.logsigmoid(0.1 * (sums[:2] - sums[2:])).mean()
    loss.backward()
    return loss, sums, logits.grad


def focal(device):
    """Focal loss as torchvision's detectors write it."""
    x = torch.randn(4, 9).to(device).requires_grad_()
    y = (torch.rand(4, 9) > 0.8).float().to(device)
    p = x.sigmoid()
    ce = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    p_t = p * y + (1 - p) * (1 - y)
    alpha = 0.25 * y + 0.75 * (1 - y)
    loss = (alpha * ce * (1 - p_t) ** 2).sum() / y.sum().clamp(min=1)
    loss.backward()
    return loss, x.grad


def gaussian_and_poisson(device):
    """Losses of distributions."""
    x = torch.randn(5).to(device).requires_grad_()
    y = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0]).to(device)
    var = torch.tensor([0.5, 1.0, 2.0, 0.0, 1.0]).to(device)
    loss = F.gaussian_nll_loss(x, y, var, full=True) + F.poisson_nll_loss(x, y, full=True)
    loss = loss + F.soft_margin_loss(x, y.sign() * 2 - 1) + F.hinge_embedding_loss(x, y.sign() * 2 - 1)
    loss.backward()
    return loss, x.grad


def huber_and_smooth_l1(device):
    """Regression losses, also at their kinks."""
    x = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]).to(device).requires_grad_()
    y = torch.zeros(7).to(device)
    loss = F.huber_loss(x, y, delta=1.0) + F.smooth_l1_loss(x, y, beta=0.5) + F.l1_loss(x, y) + F.mse_loss(x, y)
    loss.backward()
    return loss, x.grad


def kl_divergence_of_a_teacher(device):
    """Distillation: KL divergence of softened logits."""
    student = torch.randn(3, 10).to(device).requires_grad_()
    teacher = torch.randn(3, 10).to(device)
    t = 2.0
    loss = F.kl_div((student / t).log_softmax(-1), (teacher / t).softmax(-1), reduction="batchmean") * t * t
    log = F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="sum")
    (loss + log).backward()
    return loss, log, student.grad


def multi_label_margin(device):
    """Multi-class and multi-label margin losses."""
    x = torch.randn(3, 4).to(device).requires_grad_()
    y = torch.tensor([0, 3, 1]).to(device)
    many = torch.tensor([[3, 0, -1, 1], [1, -1, 0, 2], [0, 1, 2, 3]]).to(device)
    loss = F.multi_margin_loss(x, y) + F.multilabel_margin_loss(x, many)
    loss = loss + F.multilabel_soft_margin_loss(x, (many > 0).float())
    loss.backward()
    return loss, x.grad


def ppo_clipped(device):
    """PPO's clipped objective, with whitened advantages and an entropy bonus."""
    new = torch.randn(6).to(device).requires_grad_()
    old, advantage = torch.randn(6).to(device), torch.randn(6).to(device)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (new - old).exp()
    loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
    entropy = torch.distributions.Categorical(logits=new.view(2, 3)).entropy().mean()
    (loss - 0.01 * entropy).backward()
    return loss, entropy, new.grad


def triplet_and_cosine(device):
    """Margin losses of embeddings."""
    a, p, n = (torch.randn(5, 8).to(device).requires_grad_() for _ in range(3))
    sign = torch.tensor([1, -1, 1, 1, -1]).to(device)
    loss = F.triplet_margin_loss(a, p, n, margin=0.5, swap=True) + F.cosine_embedding_loss(a, p, sign, margin=0.1)
    loss = loss + F.margin_ranking_loss(a.sum(1), n.sum(1), sign.float())
    loss.backward()
    return loss, a.grad, p.grad, n.grad
