"""One-line mutants of what computes numbers, and the tests that must fail on each.

    python tests/line_mutants.py                 every mutant; lists those that no test caught, and exits with 1
    python tests/line_mutants.py lessons blocks  those of files whose path contains one of these words

Run by hand, a quarter of an hour on one core. `tests/test_mutants.py` checks that every line still stands where it is
said to.
"""

from __future__ import annotations

import sys

from mutant_runs import LineMutant, Runner

BRUTE = "test_brute_force.py"
RL = (BRUTE, "test_rl_algorithms.py")
TREES = ("test_tree_attention.py", "test_tree.py", "test_packs.py", BRUTE)
LOGPROBS = (BRUTE, "test_logprobs.py", "test_scores.py")
SPENT = ("test_tokens.py", "test_metrics.py")

_LINES: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, str], ...]] = {
    ("packing/blocks.py", ("test_tree_attention.py",)): (
        (" and run.above == above and ", " and "),
        ("run.stop, run.unbranched = end, False", "run.stop, run.unbranched = end, True"),
        ("unbranched=not whole or stop == end)", "unbranched=True)"),
        ("stop=end if whole else stop, above", "stop=stop, above"),
        ("        yield run\n        run = None\n", "        yield run\n"),
        ("keys = (*above, *range(start, stop))", "keys = tuple(range(start, stop))"),
        ("later += _seen((stop, end), keys)", "later += _seen((start, end), keys)"),
        ("handed[number] = keys", "handed[number] = above"),
        ("later += _seen(nodes, run.above)", "pass"),
        ("first.append(_masked(tree, nodes, run.above))", "first.append(_masked(tree, nodes, ()))"),
        ("seen = (key <= query) & (query < tree.end[key])", "seen = (key <= query) & (query <= tree.end[key])"),
        ("contiguous = keys[-1] - keys[0] == len(keys) - 1", "contiguous = True"),
        ("number = bisect_left(starts, end)", "number += 1"),
    ),
    ("packing/block_attention.py", ("test_tree_attention.py",)): (
        ("total.index_add_(2, part.keys, found.to(total.dtype))", "total[:, :, part.keys] = found.to(total.dtype)"),
        ("total[:, :, slice(*part.keys)] += found", "total[:, :, slice(*part.keys)] = found"),
        ("d_q[:, :, rows] += d_queries", "d_q[:, :, rows] = d_queries"),
        ("both = torch.logaddexp(log_sum, part_sum)", "both = torch.maximum(log_sum, part_sum)"),
        ("(log_sum - both).exp_()", "(part_sum - both).exp()"),
        ("log_sum.copy_(both)", "log_sum.copy_(part_sum)"),
        ("for part in (*ctx.cut.first, *ctx.cut.later):", "for part in ctx.cut.first:"),
        ("k_TJD, v_TJD = (x.repeat_interleave(share, dim=1)", "k_TJD, v_TJD = (x.repeat(1, share, 1)"),
        (
            "((d_out @ v.transpose(-1, -2) - delta) * weights * scaling)",
            "((d_out @ v.transpose(-1, -2)) * weights * scaling)",
        ),
        (".triu(1).bool(), -torch.inf)", ".triu(0).bool(), -torch.inf)"),
    ),
    ("packing/tree.py", TREES): (
        ("return (k <= q) & (q < tree.end[None, :])", "return (k < q) & (q < tree.end[None, :])"),
        ("ends[before[n]] = max(ends[before[n]], ends[n])", "ends[before[n]] = ends[n]"),
        ("parent[starts] = [stops[b] - 1 if b >= 0 else -1 for b in before]", "pass"),
        ("shift = [segment.start - segment.index for", "shift = [-segment.index for"),
        (
            "low, high = max(segment.start, start), min(segment.stop, stop)",
            "low, high = segment.start, min(segment.stop, stop)",
        ),
        ("first = segment.index + low - segment.start", "first = segment.index"),
    ),
    ("packing/trie.py", TREES): (
        ("if segment is not root and not segment.children:", "if segment is not root:"),
        ("segment = child if shared == child.stop else _split(child, shared)", "segment = child"),
        ("stack.extend(reversed(segment.children.values()))", "stack.extend(segment.children.values())"),
    ),
    ("packing/packs.py", ("test_packs.py", "test_rank_parts.py", BRUTE)): (
        ("if size > cap or not packs:", "if size > cap + 1 or not packs:"),
        ("            root = _root()\n            size", "            size"),
        ("[0] if whole else _branches(t.turns)", "_branches(t.turns)"),
        (
            "return turn.context_ids[: len(path)] == path",
            "return turn.context_ids[: len(before.context_ids)] == before.context_ids",
        ),
        ("number = -(-len(packs) // multiple_of) * multiple_of", "number = len(packs)"),
        ("(lengths[start], lengths[stop])", "(lengths[start], lengths[stop] - 1)"),
        ("return values_K[slice(*self.tokens)]", "return values_K[: self.tokens[1] - self.tokens[0]]"),
    ),
    ("packing/exactness.py", ("test_tree_attention.py",)): (
        ('_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")', '_LENGTH_DEPENDENT_ROPE = ("dynamic",)'),
        ('_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")', '_LENGTH_DEPENDENT_ROPE = ("longrope",)'),
        ("isinstance(value, float | int) and value > 0:", "isinstance(value, float | int) and value > 1:"),
    ),
    ("packing/flex.py", ("test_flex.py",)): (
        (
            "some_ij = (before_ij & (BLOCK * number_i < end_jB.amax(1)))",
            "some_ij = (before_ij & (BLOCK * number_i < end_jB.amin(1)))",
        ),
        (
            "full_ij = before_ij & (BLOCK * (number_i + 1) <= end_jB.amin(1))",
            "full_ij = before_ij & (BLOCK * number_i <= end_jB.amin(1))",
        ),
        ("return (k <= q) & (q < end_on_device[k])", "return k <= q"),
    ),
    ("algorithms/cispo.py", ("test_sequence_losses.py", BRUTE)): (
        (
            "held_M = ratio_M.clamp(None if clip_low is None else 1 - clip_low, 1 + clip_high)",
            "held_M = ratio_M.clamp(None, 1 + clip_high)",
        ),
        ("ratio_M = (logprobs_M.detach() - old_logprobs_M).exp()", "ratio_M = (logprobs_M - old_logprobs_M).exp()"),
    ),
    ("algorithms/gae.py", ("test_gae.py", BRUTE)): (
        (
            "_of_one(values.tolist(), rewards.tolist(), gamma, gamma * lam)",
            "_of_one(values.tolist(), rewards.tolist(), gamma, lam)",
        ),
        (
            "advantage = reward + gamma * following - value + decay * advantage",
            "advantage = reward + following - value + decay * advantage",
        ),
        ("        if length:\n            rewards_M[stop - 1] = reward", "        rewards_M[stop - 1] = reward"),
    ),
    ("algorithms/grpo.py", ("test_grpo.py", BRUTE)): (
        (
            "for r in rewards_G) / len(rewards_G))\n    return",
            "for r in rewards_G) / (len(rewards_G) - 1))\n    return",
        ),
        ("return tuple((r - mean) / (std + EPSILON)", "return tuple((r - mean) / (std + 10 * EPSILON)"),
    ),
    ("algorithms/dr_grpo.py", ("test_group_family.py", BRUTE)): (
        ("return tuple(r - mean for", "return tuple(mean - r for"),
    ),
    ("algorithms/rloo.py", ("test_group_family.py", BRUTE)): (
        ("return tuple(r - (total - r) / others for", "return tuple(r - total / (others + 1) for"),
    ),
    ("algorithms/reinforce.py", ("test_group_family.py", BRUTE)): (
        ("return tuple(r - baseline for", "return tuple(r for"),
    ),
    ("algorithms/reinforce_plus_plus.py", ("test_group_family.py", BRUTE)): (
        ("    if group_baseline:\n        return _scaled", "    if not group_baseline:\n        return _scaled"),
        ("std = math.sqrt(math.fsum(x * x for x in every) / len(every))", "std = 1.0"),
        (
            "iter(group_advantages(list(chain.from_iterable(rewards_G_by_group))))",
            "chain.from_iterable(map(group_advantages, rewards_G_by_group))",
        ),
    ),
    ("algorithms/gspo.py", ("test_sequence_losses.py", BRUTE)): (
        ("terms_S = free_S.minimum(held_S) / sizes_S", "terms_S = free_S.minimum(held_S)"),
        (
            "ratio_S = (sums(logprobs_M - old_logprobs_M, lengths_S) / sizes_S).exp()",
            "ratio_S = sums(logprobs_M - old_logprobs_M, lengths_S).exp()",
        ),
        ("        terms_S = terms_S * weights_S", "        pass"),
        ("        terms_M = terms_M * weights_M", "        pass"),
        ("int(spread(held_S < free_S, lengths_S).sum())", "int((held_S < free_S).sum())"),
    ),
    ("algorithms/importance.py", ("test_importance.py", BRUTE)): (
        (
            "difference_M = trainer_M.detach() - sampler_M.detach()",
            "difference_M = sampler_M.detach() - trainer_M.detach()",
        ),
        ("ratio_M.clamp(max=cap)", "ratio_M.clamp(min=1 / cap, max=cap)"),
        ("int((ratio_M > cap).sum())", "int((ratio_M > 1).sum())"),
    ),
    ("algorithms/kl.py", ("test_kl.py", BRUTE)): (
        ("return difference_M.square() / 2", "return difference_M.square()"),
        ("return (-difference_M).expm1() + difference_M", "return difference_M.expm1() - difference_M"),
        (
            "error = min(max((measured - target) / target, -LARGEST_ERROR), LARGEST_ERROR)",
            "error = min((measured - target) / target, LARGEST_ERROR)",
        ),
        ("return coefficient * (1 + error / horizon)", "return coefficient * (1 - error / horizon)"),
    ),
    ("algorithms/overlong.py", ("test_group_family.py", BRUTE)): (
        ("    if tokens <= limit - buffer:", "    if tokens <= limit:"),
        ("return (limit - buffer - tokens) / buffer", "return (limit - buffer - tokens) / limit"),
    ),
    ("algorithms/rejection.py", ("test_group_family.py", BRUTE)): (
        ("if reward >= threshold]", "if reward > threshold]"),
        ("key=lambda i: -rewards_G[i])[:best]", "key=lambda i: rewards_G[i])[:best]"),
    ),
    ("algorithms/surrogate.py", ("test_surrogate.py", BRUTE)): (
        (
            "held_M = ratio_M.clamp(1 - clip_low, 1 + clip_high) * advantages_M",
            "held_M = ratio_M.clamp(1 - clip_high, 1 + clip_low) * advantages_M",
        ),
        ("terms_M = free_M.minimum(held_M)", "terms_M = held_M"),
        ("        terms_M = terms_M * weights_M", "        pass"),
    ),
    ("algorithms/values.py", ("test_values.py", BRUTE)): (
        ("0.5 * free_M.maximum(held_M).sum()", "0.5 * free_M.minimum(held_M).sum()"),
        ("0.5 * free_M.sum() / denominator, 0)", "free_M.sum() / denominator, 0)"),
        ("errors.var(correction=0) / returns.var(correction=0)", "errors.square().mean() / returns.var(correction=0)"),
    ),
    ("algorithms/whitening.py", ("test_values.py", "test_gae.py", BRUTE)): (
        ("advantages_M.var(correction=0)", "advantages_M.var()"),
        ("return centred_M if shift else centred_M + mean", "return centred_M + mean if shift else centred_M"),
    ),
    ("training/rl_config.py", RL): (
        ("    whiten: bool = True", "    whiten: bool = False"),
        ("    lam: float = Field(default=1.0, ge=0, le=1)", "    lam: float = Field(default=0.95, ge=0, le=1)"),
        ("    gamma: float = Field(default=1.0, gt=0, le=1)", "    gamma: float = Field(default=0.99, gt=0, le=1)"),
        ('return "k3" if self.estimator == "k3" else "k2"', 'return "k2"'),
        (
            "return 2 if isinstance(self.algorithm, ReinforcePlusPlus) else",
            "return 1 if isinstance(self.algorithm, ReinforcePlusPlus) else",
        ),
        (
            "COMPARES_ATTEMPTS = (Grpo, DrGrpo, Rloo, Dapo, Gspo, Cispo)",
            "COMPARES_ATTEMPTS = (Grpo, DrGrpo, Rloo, Dapo, Gspo)",
        ),
        ("return self.updates_per_rollout * self.minibatches", "return self.updates_per_rollout"),
    ),
    ("training/lessons.py", RL): (
        ("for t in group.trajectories if t.ended.scorable}) > 1", "for t in group.trajectories}) > 1"),
        ("if len(rest) >= config.fewest_attempts]", "if rest]"),
        (
            "return [g for g in judged if has_variance(g)] if isinstance(config.algorithm, Dapo) else judged",
            "return judged",
        ),
        ("or config.entropy > 0 or", "or"),
        ('or (config.kl and config.kl.where == "loss")', ""),
        (
            "overlong.penalty(trajectory.num_completion_tokens)",
            "overlong.penalty(len(trajectory.turns[-1].completion_ids))",
        ),
        ("reward + overlong.penalty(", "reward - overlong.penalty("),
        ("return coefficient * kl_estimate(", "return config.kl.coefficient * kl_estimate("),
        ("kl_estimate(before.old_K, before.reference_K", "kl_estimate(before.sampler_K, before.reference_K"),
        ("r - float(p.sum()) if", "r - float(p.mean()) if"),
        ("[r - float(p.sum()) if p is not None and compared else r", "[r - float(p.sum()) if p is not None else r"),
        ("return [has_variance(group) for group in groups]", "return [True] * len(groups)"),
        ("return [len(earned) > 1 or not isinstance(algorithm, ReinforcePlusPlus)]", "return [True]"),
        ("    if fewest_attempts(algorithm) > 1:\n", "    if True:\n"),
        ("        torch.cat(flat) if flat else None,", "        None,"),
        ("values_K=values_K + shift", "values_K=values_K"),
        ("lesson.returns_K - lesson.before.values_K\n", "lesson.returns_K\n"),
        ("teaches=telling and len(lesson.advantages_K) > 0", "teaches=len(lesson.advantages_K) > 0"),
        ("telling = always or any(", "telling = always or all("),
        ('lengths = [len(b.old_K)] if importance.level == "sequence" else None', "lengths = None"),
        ("truncated_weights(b.old_K, b.sampler_K,", "truncated_weights(b.sampler_K, b.old_K,"),
    ),
    ("training/losses.py", RL): (
        (
            "policy_gradient(new_M, advantages_M, denominator=denominator, weights_M=weights_M), 0)",
            "policy_gradient(new_M, advantages_M, denominator=denominator), 0)",
        ),
        ("inputs.advantages_M[first_S.to(inputs.advantages_M.device)]", "inputs.advantages_M[: len(first_S)]"),
        ("[1 / len(lengths) for lengths in units", "[1 for lengths in units"),
        ("        weights_M=inputs.weights_M,\n    )", "    )"),
        ('return turns if unit == "turn" else [sum(turns)]', "return turns"),
        ("return float(len(trajectories))\n", "return float(sum(len(t.turns) > 0 for t in trajectories))\n"),
        ("return float(len(trajectories) * tokens)", "return float(tokens)"),
        (
            "case Rloo() | Reinforce():\n            return SurrogateLoss(policy",
            "case Rloo():\n            return SurrogateLoss(policy",
        ),
        ("                clip_low=low,\n", "                clip_low=None,\n"),
    ),
    ("training/advantages.py", RL): (
        ("rewards_M = rewards_M - penalties_M", "rewards_M = rewards_M + penalties_M"),
        ("    if config.whiten and len(advantages_M):", "    if len(advantages_M):"),
        ("gamma=config.gamma, lam=config.lam)", "gamma=config.gamma)"),
        ("group_baseline=group_baseline)\n", "group_baseline=False)\n"),
        ("return [reinforce_advantages(rewards, baseline=baseline)", "return [reinforce_advantages(rewards)"),
        ("threshold=algorithm.threshold, best=algorithm.best)", "threshold=algorithm.threshold)"),
    ),
    ("training/updates.py", RL): (
        ("scores.entropy_M.sum() / denominators.tokens", "scores.entropy_M.mean()"),
        ("loss = loss - networks.config.entropy", "loss = loss + networks.config.entropy"),
        ("estimate_M.sum() / denominators.tokens", "estimate_M.mean()"),
        ("loss + networks.kl_coefficient * estimate_M", "loss + kl.coefficient * estimate_M"),
        ("            denominator=denominators.tokens,", "            denominator=float(len(values_M)),"),
        ("            clip=networks.value_clip,", "            clip=None,"),
        ("        loss = loss + critic.loss\n", ""),
        (
            "telling = [lesson for group in groups for lesson in group if lesson.teaches]",
            "telling = [lesson for group in groups for lesson in group if len(lesson.advantages_K)]",
        ),
        ("    if networks.recomputes or update.first:", "    if True:"),
        ("sampled_by(t, update.begun)", "sampled_by(t, update.version)"),
        ("trainer_M = old_M if networks.recomputes else scores.logprobs_M", "trainer_M = scores.logprobs_M"),
        (
            "staleness([lesson.trajectory for lesson in telling], update.version)",
            "staleness([lesson.trajectory for lesson in telling], update.begun)",
        ),
        ("            weights_M=joined(lambda x: x.weights_K),", "            weights_M=None,"),
        ("            old_M=old_M,", "            old_M=sampler_M,"),
        ("scores = networks.scores(trajectories, frozen=update.frozen)", "scores = networks.scores(trajectories)"),
        ("            values_M,\n            returns_M,", "            returns_M,\n            values_M,"),
        ("totals.updates += bool(telling)", "totals.updates += 1"),
        ("return bool(telling)", "return True"),
    ),
    ("training/networks.py", ("test_scores.py", *RL)): (
        ("                temperature=self.config.temperature,\n", "                temperature=1.0,\n"),
        (
            "trajectories,\n            temperature=self.config.temperature,\n",
            "trajectories,\n            temperature=1.0,\n",
        ),
        ("                packed=self.config.packed,\n", "                packed=True,\n"),
        (
            "            packed=self.config.packed,\n            attention",
            "            packed=True,\n            attention",
        ),
        ('entropy="gradient" if self.config.entropy and not frozen else "value"', 'entropy="value"'),
        (
            'self.config.old_policy == "trainer" or self.config.importance is not None',
            'self.config.old_policy == "trainer"',
        ),
        (
            'self.config.old_policy == "trainer" or self.config.importance is not None',
            "self.config.importance is not None",
        ),
        ("whole=isinstance(self.config.algorithm, Gspo)", "whole=False"),
        ('found["old_K"] = scores.logprobs_M if self.recomputes else sampler_M', 'found["old_K"] = scores.logprobs_M'),
        ("return self.reference.coefficient.item() if", "return self.config.kl.coefficient if"),
        ("            self.reference.model,\n", "            self.policy,\n"),
        ("return self.config.algorithm.value_clip if isinstance", "return None if isinstance"),
    ),
    ("training/scores.py", LOGPROBS): (
        (
            "head_columns(model, found.states_ND, found.targets_N, temperature, entropy)",
            "head_columns(model, found.states_ND, found.targets_N, 1.0, entropy)",
        ),
        (
            "return columns(logits, targets, temperature, entropy), out",
            "return columns(logits, targets, 1.0, entropy), out",
        ),
        ('both_M[:, 1] if entropy == "gradient" else', 'both_M[:, 0] if entropy == "gradient" else'),
        ("kept = slice(ids.shape[1] - length, None)", "kept = slice(ids.shape[1] - length - 1, -1)"),
        ("out.hidden_states[-1][0, kept]", "out.hidden_states[-2][0, kept]"),
        ("logits = out.logits[0, out.logits.shape[1] - length :]", "logits = out.logits[0, -length:]"),
        ("ids.shape[1] - len(turn.completion_ids) :]", "-len(turn.completion_ids) :]"),
        ("[ids[:-1] if turn.completion_ids else ids]", "[ids]"),
    ),
    ("training/logprobs.py", LOGPROBS): (
        ("/ temperature\n    logprobs_V", "* temperature\n    logprobs_V"),
        (
            "-(logprobs_V.exp() * logprobs_V).sum(-1, keepdim=True)",
            "-(logprobs_V.exp().detach() * logprobs_V).sum(-1, keepdim=True)",
        ),
        ("torch.special.entr(logprobs_V.detach().exp())", "torch.special.entr(torch.softmax(logits.detach(), -1))"),
        ("tree.parent[nodes].to(device)", "nodes.to(device)"),
        ("[states.repeat_M]\n    return", "\n    return"),
        (
            'return columns(logits, targets, temperature, "none")[:, 0]',
            'return columns(logits, targets, 1.0, "none")[:, 0]',
        ),
        ("turn.context_ids + turn.completion_ids[:-1]", "turn.context_ids + turn.completion_ids"),
        ("rows = max(1, LOGITS_AT_ONCE // head.out_features)", "rows = 10**9"),
    ),
    ("training/critic.py", RL): (
        ("held_MD + self.trunk_gradient * (states_MD - held_MD)", "held_MD + (states_MD - held_MD)"),
        ("        if self.trunk is None:\n", "        if True:\n"),
        ("float(errors_M.mean()", "float(errors_M.sum()"),
        ("        self.head.bias.add_(shift)\n", ""),
        ("nn.init.zeros_(self.head.weight)", "pass"),
    ),
    ("training/reference.py", RL): (
        ("        self.coefficient.fill_(after)", "        pass"),
        ("horizon=self.config.horizon", "horizon=1.0"),
        ("copy.deepcopy(policy).requires_grad_(False)", "policy"),
    ),
    ("training/ranks/optimizers.py", ("test_optimizers.py", BRUTE, "test_rl_algorithms.py")): (
        (
            "AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)",
            "AdamW(parameters, lr=rate, betas=(0.9, 0.999), weight_decay=0.0)",
        ),
        (
            "AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.0)",
            "AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)",
        ),
        (
            "clip_grads_with_norm_(self.parameters, max_grad_norm, norm)",
            "clip_grads_with_norm_(self.parameters, 1.0, norm)",
        ),
        ('group["lr"] = rate * scale', 'group["lr"] = rate'),
        ("optimizer.zero_grad(set_to_none=True)", "pass"),
        ("return min(1.0, (step + 1) / steps)", "return min(1.0, step / steps)"),
        ("max(0.05, left)", "max(0.5, left)"),
        ("left = (steps - step) / (decay * steps)", "left = (steps - step - 1) / (decay * steps)"),
        (
            "AdamW(others, lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0),\n",
            "AdamW(others, lr=adam_rate, betas=(0.9, 0.99), weight_decay=0.0),\n",
        ),
        ("is_matrix = parameter.ndim == 2 and id(parameter) not in embeddings", "is_matrix = parameter.ndim == 2"),
    ),
    ("training/rl.py", RL): (
        ("max_grad_norm=self.config.max_grad_norm))\n        if", "max_grad_norm=1.0))\n        if"),
        (
            "critic_norms.append(self._critic.step(scale=scale, max_grad_norm=self.config.max_grad_norm))",
            "critic_norms.append(self._critic.step(scale=scale))",
        ),
        ("                self.networks.reference.adapt(kl)", "                pass"),
        ("            lessons_by_group = centred(self.networks.critic, lessons_by_group)", "            pass"),
        (
            "kl_coefficient=self.networks.kl_coefficient,",
            "kl_coefficient=self.config.kl.coefficient if self.config.kl else 0.0,",
        ),
        (
            "missing -= Counter(objectives for objectives, group in drawn if has_variance(group))",
            "missing -= Counter(objectives for objectives, group in drawn)",
        ),
        ("+ index + draw * DRAW", "+ index + draw"),
        ("+ index + draw * DRAW", "+ index"),
        ("            groups += (group for _, group in drawn)", "            groups = [group for _, group in drawn]"),
        ("algorithm.max_draws if isinstance(algorithm, Dapo) else 1", "4"),
        ("algorithm.max_draws if isinstance(algorithm, Dapo) else 1", "1"),
        ("begun + (0 if warming else number)", "begun"),
        ("first=number == 0,", "first=True,"),
        ("return _policy_step(config, index) * config.updates", "return _policy_step(config, index)"),
        ("epochs=self.config.updates_per_rollout,", "epochs=1,"),
        ("float(bool(judged) and not totals.updates)", "0.0"),
        ('"skipped_too_few": float(not judged)', '"skipped_too_few": 0.0'),
    ),
    ("training/staleness.py", (BRUTE, "test_asynchronous.py")): (
        ("found[version - sampled] += tokens", "found[version - sampled] += 1"),
        ("[(version, tokens) for version, tokens in runs if tokens]", "list(runs)"),
        ("yield from (sampled == version for", "yield from (sampled <= version for"),
    ),
    ("training/batches.py", RL): (
        ('random.Random(f"{seed}/{epoch}")', 'random.Random(f"{seed}")'),
        (
            "len(order) * part // count : len(order) * (part + 1) // count",
            "part * (len(order) // count) : (part + 1) * (len(order) // count)",
        ),
    ),
    ("training/rank_packs.py", ("test_rank_parts.py",)): (
        ("return (loss if number.counts else loss * 0.0), said", "return loss, said"),
        ("zip(self.passes, said, strict=True) if number.counts}", "zip(self.passes, said, strict=True)}"),
        (
            "return [found[number] for number in range(len(self.packs))]\n\n    def _in_order",
            "return list(found.values())\n\n    def _in_order",
        ),
        ("found = {number: said for pairs in of_ranks for", "found = {number: said for pairs in of_ranks[:1] for"),
    ),
    ("training/balance.py", ("test_rank_parts.py",)): (
        ("Pass(order[-1], counts=False)", "Pass(order[-1])"),
        ("Pass(order[-1], counts=False)", "Pass(order[0], counts=False)"),
        ("key=lambda i: (-costs[i], i)", "key=lambda i: (costs[i], i)"),
        ("int((tree.position_ids + 1).sum())", "len(tree)"),
    ),
    ("training/parallel_packs.py", ("test_parallel_packs.py", BRUTE)): (
        ("else parameter.grad.add_(gradient)", "else gradient"),
    ),
    ("training/checkpoints/checkpoint.py", ("test_checkpoint.py",)): (
        ("        if successor.exists():\n            remove_listed(old)", "        remove_listed(successor)"),
        ("        for old in _complete(folder)[:-keep]:", "        for old in _complete(folder)[: -keep - 1]:"),
        ('key=lambda p: int(p.name.rpartition("-")[2]))', "key=lambda p: p.name)"),
        ("        seal(partial, kind=KIND, format=FORMAT)\n", ""),
        ('    if state["fingerprint"] != fingerprint:', "    if False:"),
        ("        _load_weights(path, path / MODULES / name, module)", "        pass"),
        ("        read(path / OPTIMIZERS, tensors)\n", ""),
    ),
    ("durable.py", ("test_checkpoint.py", "test_index_folder.py")): (
        ("            target.rename(old)\n", "            shutil.rmtree(target)\n"),
        ("    for _, target in set_aside(folder):\n        restore(target)", "    return"),
    ),
    ("training/rl_metrics.py", RL): (
        (
            "self.largest_difference = max(self.largest_difference, other.largest_difference)",
            "self.largest_difference = other.largest_difference",
        ),
        ("        self.clipped += other.clipped\n", ""),
        ('kl_estimate(old_M, reference_M, "k3")', 'kl_estimate(old_M, reference_M, "k2")'),
        ("self.loss / max(self.updates, 1)", "self.loss"),
        ("sum(lesson.capped for lesson in lessons) / tokens", "sum(lesson.capped for lesson in lessons)"),
        ("judged = [t for t in trajectories if t.ended.scorable]", "judged = list(trajectories)"),
    ),
    ("contexts/base.py", ("test_contexts.py", "test_rollout.py")): (
        ("    for a, b in reversed(_dropped(kept)):", "    for a, b in _dropped(kept):"),
        ("        if kept.result and kept.turn.observation_ids:", "        if kept.turn.observation_ids:"),
        ('dropped = [spans["thought"]] if "thought" in spans else []', "dropped = []"),
        ("        if stop - start > kept.state_tokens:", "        if stop - start >= kept.state_tokens - 1:"),
        ("return turn.prefill_ids + turn.completion_ids", "return turn.completion_ids"),
        ("return {role: (a, b) for role, (a, b) in roles.items() if b > a}", "return roles"),
    ),
    ("contexts/policies.py", ("test_contexts.py",)): (
        ("key=lambda note: (-scores[note], -note))", "key=lambda note: (-scores[note], note))"),
        ("*best_first(match, among=match)[:1])", ")"),
        ("sorted(islice(_retrieved(turns), self.k))", "list(islice(_retrieved(turns), self.k))"),
        (' {turn.observation}".lower()', '".lower()'),
        ("Kept(turn=turn, result=False)", "Kept(turn=turn)"),
        (
            "requested_action=SUMMARY if new > self.tokens else None",
            "requested_action=SUMMARY if new >= self.tokens else None",
        ),
        ("for t in turns[last + 1 :])", "for t in turns[max(last, 0) :])"),
        ("kept = keep(turns[max(last, 0) :])", "kept = keep(turns[last + 1 :])"),
        ("return keep(turns[-self.k :])", "return keep(turns[-self.k - 1 :])"),
        ("(len(turns) - 1) // self.k * self.k :]", "len(turns) // self.k * self.k :]"),
    ),
    ("rollout.py", ("test_rollout.py",)): (
        ("{r: (max(a - len(opening), 0), b - len(opening)) for", "{r: (a, b) for"),
        ("b - len(opening)) for", "b) for"),
        ("parsed = parse(opening + text, self.tags)", "parsed = parse(text, self.tags)"),
        ("            prefilled=asked is not None,", "            prefilled=False,"),
        ("attempt.turns_left == 1 and", "attempt.turns_left <= 2 and"),
    ),
    ("evaluation/compare.py", ("test_differences.py",)): (
        (
            "values = [[measure(run[name][1]) for name in by_task[0]] for run in by_task]",
            "values = [[measure(t) for _, t in run.values()] for run in by_task]",
        ),
        ("            if run[name][0] != task:", "            if False:"),
        ("mean = float(np.mean(mine) - np.mean(others))", "mean = float(np.mean(others) - np.mean(mine))"),
        ("        if trajectory.task.id in found:", "        if False:"),
        ("statistics.stdev(by_seed)", "statistics.pstdev(by_seed)"),
    ),
    ("evaluation/tokens.py", SPENT): (
        ("(len(t.context_ids) + len(t.completion_ids) / 2)", "(len(t.context_ids) + len(t.completion_ids))"),
        ("        before = turn.context_ids + turn.completion_ids\n", "        before = turn.context_ids\n"),
        (
            "        history += len(turn.completion_ids) + len(turn.observation_ids)",
            "        history += len(turn.completion_ids)",
        ),
        ("        if turn.action == SUMMARY:\n            sizes", "        if False:\n            sizes"),
        ("0 if prompt else _prompt_tokens(t)", "_prompt_tokens(t) if prompt else 0"),
        (
            "return None if span is None else span[1] - span[0]",
            "return None if span is None else span[1] - span[0] + 1",
        ),
        ("one[start : start + _BLOCK] != other[start : start + _BLOCK]", "one[start] != other[start]"),
    ),
    ("evaluation/flops.py", ("test_cost.py", "test_metrics.py", "test_shapes.py")): (
        ("shape.parameters * (tokens - cached)", "shape.parameters * tokens"),
        ("- cached * (cached + 1)) // 2", ") // 2"),
        ("shape.output_parameters * sampled", "shape.output_parameters * tokens"),
        ("4 * shape.layers", "2 * shape.layers"),
    ),
    ("evaluation/fact_retention.py", ("test_fidelity.py",)): (
        ("if fact in seen and fact.until not in seen)", "if fact in seen)"),
        ("sum(fact in noted and fact not in step.kept for", "sum(fact not in step.kept for"),
        ("if not fact.beside or _holds(result, fact.beside)}", "}"),
        ("and not _holds(prompt, fact.aliases)]", "]"),
        ("if len(name) > 1)", ")"),
        ("_words(_without_hint(turn.observation))", "_words(turn.observation)"),
    ),
    ("evaluation/metrics.py", ("test_metrics.py", "test_mutants.py")): (
        ("return len(queries) - len(set(queries))", "return len(set(queries))"),
        ("[t.seconds for t in trajectories], 95)", "[t.seconds for t in trajectories], 90)"),
        ("solved_per_task = objectives * _mean(em)", "solved_per_task = _mean(em)"),
        ('trajectory.per_objective("em") or (0.0,) * len(depths)', 'trajectory.per_objective("em")'),
    ),
    ("scoring.py", ("test_scoring.py",)): (
        ("common = sum((Counter(predicted) & Counter(gold)).values())", "common = len(set(predicted) & set(gold))"),
        ("answers.setdefault(index, piece", "answers.__setitem__(index, piece"),
        ("float(bool(p) and exact_match(p, g))", "float(exact_match(p, g))"),
        ("max((_f1(predicted,", "min((_f1(predicted,"),
    ),
    ("net/failover.py", ("test_openai_engine.py",)): (
        (
            "for_good=bool(failures) and all(failure.for_good for failure in failures),",
            "for_good=bool(failures) and any(failure.for_good for failure in failures),",
        ),
        (
            "wait_s=min((failure.wait_s for failure in failures), default=0.0),",
            "wait_s=max((failure.wait_s for failure in failures), default=0.0),",
        ),
    ),
}
LINE_MUTANTS = tuple(
    LineMutant(file, before, after, tests) for (file, tests), lines in _LINES.items() for before, after in lines
)


if __name__ == "__main__":
    words = sys.argv[1:]
    chosen = [m for m in LINE_MUTANTS if not words or any(word in m.file for word in words)]
    left = 0
    for number, (mutant, found, seconds) in enumerate(Runner().run(chosen), start=1):
        left += not found
        line = f"{mutant.file}: {mutant.after.strip()!r} {found and '<- ' + found}"
        print(f"{number:3}/{len(chosen)} {seconds:5.1f} s {'caught  ' if found else 'SURVIVED'} {line}", flush=True)
    print(f"{len(chosen) - left} of {len(chosen)} caught")
    sys.exit(bool(left))
