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
        ("if segment is not self._root and not segment.children:", "if segment is not self._root:"),
        ("segment = child if shared == child.stop else self._split(child, shared)", "segment = child"),
        ("stack.extend(reversed(segment.children.values()))", "stack.extend(segment.children.values())"),
        ("segment.path, segment.stop = old, start", "segment.stop = start"),
        ("            del segment.children[path[start]]", "            pass"),
        ("            parent.children[child.path[start]] = child", "            pass"),
        ("            self.size = size_before", "            pass"),
    ),
    ("packing/packs.py", ("test_packs.py", "test_ranks.py", BRUTE)): (
        ("if trie.size <= cap:", "if trie.size <= cap + 1:"),
        ("            trie.take_back()\n", ""),
        ("        trie = Trie()\n        trie.add(turns)", "        trie.add(turns)"),
        ("[0] if whole else _branches(t.turns)", "_branches(t.turns)"),
        (
            "return turn.context_ids[: len(path)] == path",
            "return turn.context_ids[: len(before.context_ids)] == before.context_ids",
        ),
        ("number = -(-len(filled) // ranks) * ranks", "number = len(filled)"),
        ("(lengths[start], lengths[stop])", "(lengths[start], lengths[stop] - 1)"),
        ("return values_K[slice(*self.tokens)]", "return values_K[: self.tokens[1] - self.tokens[0]]"),
    ),
    ("packing/attention.py", ("test_tree_attention.py",)): (
        ('_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")', '_LENGTH_DEPENDENT_ROPE = ("dynamic",)'),
        ('_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")', '_LENGTH_DEPENDENT_ROPE = ("longrope",)'),
        ("isinstance(value, float | int) and value > 0:", "isinstance(value, float | int) and value > 1:"),
    ),
    ("packing/attention.py", ("test_flex.py",)): (
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
    ("algorithms/ratios.py", ("test_losses.py", *RL)): (
        (
            "held_M = ratio_M.clamp(None if self.clip_low is None else 1 - self.clip_low, 1 + self.clip_high)",
            "held_M = ratio_M.clamp(None, 1 + self.clip_high)",
        ),
        ("ratio_M = (inputs.logprobs_M.detach() -", "ratio_M = (inputs.logprobs_M -"),
        ("free_S.minimum(held_S) / sizes_S", "free_S.minimum(held_S)"),
        (
            "(sums(inputs.logprobs_M - inputs.old_logprobs_M, lengths_S) / sizes_S).exp()",
            "sums(inputs.logprobs_M - inputs.old_logprobs_M, lengths_S).exp()",
        ),
        ("sizes_S * weights_S, lengths_S)", "sizes_S, lengths_S)"),
        ("            terms_M = terms_M * inputs.weights_M", "            pass"),
        ("int(spread(held_S < free_S, lengths_S).sum())", "int((held_S < free_S).sum())"),
        ("advantages_M[torch.tensor(first_S, device=advantages_M.device)]", "advantages_M[: len(first_S)]"),
        ("[1 / len(lengths) for lengths in units", "[1 for lengths in units"),
        ('return turns if self.unit == "turn" else [sum(turns)]', "return turns"),
        ("return float(len(trajectories))\n", "return float(sum(len(t.turns) > 0 for t in trajectories))\n"),
        ("    needs_whole_trajectories = True", "    needs_whole_trajectories = False"),
    ),
    ("algorithms/ppo.py", ("test_gae.py", *RL)): (
        ("- value + gamma * lam * advantage", "- value + lam * advantage"),
        ("advantage = reward + gamma * following", "advantage = reward + following"),
        ("0.5 * free_M.maximum(held_M).sum()", "0.5 * free_M.minimum(held_M).sum()"),
        ("0.5 * free_M.sum() / denominator, 0)", "free_M.sum() / denominator, 0)"),
        ("errors.var(correction=0) / returns.var(correction=0)", "errors.square().mean() / returns.var(correction=0)"),
        ("advantages_M.var(correction=0)", "advantages_M.var()"),
        ("    whiten: bool = True", "    whiten: bool = False"),
        ("    lam: float = Field(default=1.0, ge=0, le=1)", "    lam: float = Field(default=0.95, ge=0, le=1)"),
        ("    gamma: float = Field(default=1.0, gt=0, le=1)", "    gamma: float = Field(default=0.99, gt=0, le=1)"),
        ("            rewards_M = rewards_M - torch.cat(penalties)", "            pass"),
        ("        if self.whiten and len(advantages_M):", "        if len(advantages_M):"),
        ("gamma=self.gamma, lam=self.lam)", "gamma=self.gamma)"),
        ("return max(0, steps - self.critic_warmup)", "return steps"),
    ),
    ("algorithms/channels.py", ("test_channels.py",)): (
        ("channel.weight * by_turn[i][number]", "by_turn[i][number]"),
        ("together = sorted({*before, *named})", "together = named"),
        ("if turn.action == ANSWER or not together", "if not together"),
        ("advantages.get(i, 0.0)", "advantages.get(i, 1.0)"),
        ("        before = held\n", ""),
        ("mean = _mean(means)", "mean = _mean([g for of_one in gains for g in of_one])"),
        ("a_K[places(turn, channel.tokens)] +=", "a_K[:] +="),
    ),
    ("algorithms/ppo.py", ("test_channel_rewards.py",)): (
        ("[paid(self.channels, x)", "[paid((Outcome(),), x)"),
        ("            if not channel.has_rewards:", "            if False:"),
        ("            if not channel.scale:", "            if False:"),
    ),
    ("algorithms/base.py", ("test_rerolls.py",)): (
        ("len({t.reward for t in group.attempts if", "len({t.reward for t in group.trajectories if"),
    ),
    ("algorithms/channels.py", ("test_rerolls.py",)): (
        ("x.trajectory.attempt: i for i, x", "i: i for i, x"),
        ("first = [(whole[attempt], turn)]", "first = [(whole[attempt], 0)]"),
        ("compared.setdefault((attempt, turn), first)", "compared.setdefault((attempt, turn), [])"),
        (
            "[0.0] * len(x.trajectory.turns) for x in attempts_G]\n\n\ndef paid",
            "[1.0] for x in attempts_G]\n\n\ndef paid",
        ),
        ("for x in attempts_G if x.trajectory.rerolled is None]))", "for x in attempts_G]))"),
    ),
    ("training/gradients/samples.py", ("test_rerolls.py",)): (
        ("if len(group.attempts) >=", "if len(group.trajectories) >="),
    ),
    ("engines/kept_prefixes.py", ("test_kept_prefixes.py",)): (
        ("if session is None or session != self.session:", "if session is None:"),
        ("return session is not None", "return True"),
        ("return found if left <=", "return found if 0 <="),
        ("len(context) - 1)", "len(context))"),
        ("            if room < 0:", "            if room < -1000:"),
        ("padded_BHTD[row, :, longest - length :]", "padded_BHTD[row, :, :length]"),
        (">= longest - lengths_B1", ">= longest"),
        ("key=lambda pair: pair[0])", "key=lambda pair: -pair[0])"),
    ),
    ("engines/local.py", ("test_kept_prefixes.py",)): (
        (
            "return self._append(suffixes, self.real_BT.sum(-1), cache)\n        prefixes,",
            "return self._append(suffixes, 0 * self.real_BT.sum(-1), cache)\n        prefixes,",
        ),
    ),
    ("training/loop/rerolls.py", ("test_rerolls.py",)): (
        ("len(groups[number].trajectories) + time)", "time)"),
        ("earlier=[attempt.turns[:turn]", "earlier=[attempt.turns[: turn + 1]"),
        ("turns=(found.turns[turn],)", "turns=(found.turns[0],)"),
        ("rerolled=(attempt.attempt, turn)", "rerolled=(0, turn)"),
        ("turn.action not in (ANSWER, MALFORMED) and", ""),
    ),
    ("training/loop/rl.py", ("test_rerolls.py",)): (
        ("for t in group.attempts]\n        return", "for t in group.trajectories]\n        return"),
    ),
    ("rollout.py", ("test_rerolls.py",)): (
        (
            "            attempt.take(turn)\n            done",
            "            attempt.turns.append(turn)\n            done",
        ),
    ),
    ("algorithms/channels.py", ("test_channel_rewards.py",)): (
        ("+= channel.weight * reward", "+= reward"),
        ("            if last >= 0:", "            if True:"),
        ("            start = stop\n    return rewards_K", "    return rewards_K"),
        ("max((start + place for", "min((start + place for"),
        ("default=stop - 1)", "default=-1)"),
        ("earned = 0.0 if self._overflows(attempt.trajectory) else", "earned ="),
        ("[*[0.0] * (len(attempt.trajectory.turns) - 1), earned]", "[earned] * len(attempt.trajectory.turns)"),
        ('-float(len(places(turn, "memory"))) if taken else 0.0', '-float(len(places(turn, "memory")))'),
    ),
    ("algorithms/channels.py", ("test_memory_gain.py",)): (
        ("[after - before for before, after in pairwise", "[before - after for before, after in pairwise"),
        ("any(channel.scores_memory for", "all(channel.scores_memory for"),
    ),
    ("training/gradients/memory_scores.py", ("test_memory_gain.py",)): (
        ('MEMORY_ROLES = ("state", NOTE)', 'MEMORY_ROLES = ("state",)'),
        ('MEMORY_ROLES = ("state", NOTE)', 'MEMORY_ROLES = ("state", NOTE, "result")'),
        ('MEMORY_ROLES = ("state", NOTE)', 'MEMORY_ROLES = ("state", NOTE, "query")'),
        ("range(1, len(attempt.turns) + 1)", "range(1, len(attempt.turns))"),
        ("next_context(policy, (), attempt.turns[:number])", "next_context(policy, (), attempt.turns)"),
        ("context_ids=prompt + memory + opened + label", "context_ids=memory + opened + label"),
        ("context_ids=prompt + memory + opened + label", "context_ids=prompt + memory + label"),
        ("for number, question in zip(task.numbers,", "for number, question in zip(range(1, 3),"),
        ("if alias.strip())", "if alias)"),
        ("        start += length\n", ""),
        ("_mean(parts[start : start + length])", "math.fsum(parts[start : start + length])"),
    ),
    ("algorithms/group.py", ("test_group_family.py", *RL)): (
        (
            "std = math.sqrt(math.fsum(x**2 for x in centred) / len(centred))",
            "std = math.sqrt(math.fsum(x**2 for x in centred) / (len(centred) - 1))",
        ),
        (
            "return tuple(x / (std + EPSILON) for x in centred)",
            "return tuple(x / (std + 10 * EPSILON) for x in centred)",
        ),
        ("return tuple(r - mean for", "return tuple(mean - r for"),
        ("return tuple(r - (total - r) / others for", "return tuple(r - total / (others + 1) for"),
        ("return tuple(r - self.baseline for", "return tuple(r for"),
        ("    if not group_baseline:\n", "    if group_baseline:\n"),
        ("std = math.sqrt(math.fsum(x * x for x in every) / len(every))", "std = 1.0"),
        (
            "iter(normalised_advantages(list(chain.from_iterable(rewards_G_by_group))))",
            "chain.from_iterable(map(normalised_advantages, rewards_G_by_group))",
        ),
        ("group_baseline=self.group_baseline)", "group_baseline=False)"),
        ("        return 2\n", "        return 1\n"),
        ("[len({x.trajectory.reward for group in groups for x in group}) > 1] * len(groups)", "[True] * len(groups)"),
        ("return min(0.0, (self.limit", "return max(0.0, (self.limit"),
        ("- self.buffer - tokens) / self.buffer", "- self.buffer - tokens) / self.limit"),
        (
            "self.overlong.penalty(trajectory.num_completion_tokens)",
            "self.overlong.penalty(len(trajectory.turns[-1].completion_ids))",
        ),
        ("reward + self.overlong.penalty(", "reward - self.overlong.penalty("),
        ("[group for group in groups if has_variance(group)]", "list(groups)"),
        ("if reward >= threshold]", "if reward > threshold]"),
        ("key=lambda i: -rewards_G[i])[:best]", "key=lambda i: rewards_G[i])[:best]"),
        ("threshold=self.threshold, best=self.best)", "threshold=self.threshold)"),
        ("return float(len(trajectories) * self.tokens_per_attempt)", "return float(self.tokens_per_attempt)"),
        ("denominator=denominator, weights_M=inputs.weights_M\n", "denominator=denominator\n"),
        ("    one_update_per_rollout = True", "    one_update_per_rollout = False"),
        ("        return self.max_draws", "        return 4"),
    ),
    ("algorithms/base.py", RL): (
        ("for t in group.attempts if t.ended.scorable}) > 1", "for t in group.attempts}) > 1"),
        ("float(self.kl_penalty_K.sum())", "float(self.kl_penalty_K.mean())"),
        ("x.shaped_reward - x.kl_penalty if subtract else", "x.shaped_reward - x.kl_penalty if True else"),
        ("not self.compares_attempts or len({x", "len({x"),
        ("return 2 if self.compares_attempts else 1", "return 2"),
        ("            weights_M=inputs.weights_M,\n", ""),
    ),
    ("algorithms/losses.py", ("test_losses.py", BRUTE)): (
        (
            "difference_M = trainer_M.detach() - sampler_M.detach()",
            "difference_M = sampler_M.detach() - trainer_M.detach()",
        ),
        ("ratio_M.clamp(max=cap)", "ratio_M.clamp(min=1 / cap, max=cap)"),
        ("int((ratio_M > cap).sum())", "int((ratio_M > 1).sum())"),
        ("return difference_M.square() / 2", "return difference_M.square()"),
        ("return (-difference_M).expm1() + difference_M", "return difference_M.expm1() - difference_M"),
        ("error = min(max((measured - target) / target, -0.2), 0.2)", "error = min((measured - target) / target, 0.2)"),
        ("return coefficient * (1 + error / horizon)", "return coefficient * (1 - error / horizon)"),
        (
            "held_M = ratio_M.clamp(1 - clip_low, 1 + clip_high) * advantages_M",
            "held_M = ratio_M.clamp(1 - clip_high, 1 + clip_low) * advantages_M",
        ),
        ("terms_M = free_M.minimum(held_M)", "terms_M = held_M"),
        ("        terms_M = terms_M * weights_M\n    return Loss", "        pass\n    return Loss"),
    ),
    ("training/loop/rl_config.py", RL): (
        ("return self.epochs * self.minibatches", "return self.epochs"),
        ("return self.algorithm.policy_steps(step) * self.updates", "return self.algorithm.policy_steps(step)"),
        ('self.old_logprobs_from == "trainer" or self.importance is not None', 'self.old_logprobs_from == "trainer"'),
        ('self.old_logprobs_from == "trainer" or self.importance is not None', "self.importance is not None"),
    ),
    ("training/loop/rl_config.py", ("test_schedule.py",)): (
        ("return named[-1] if named else None", "return named[0] if named else None"),
        ("            if step < phase.steps:", "            if step <= phase.steps:"),
        ("return self.curriculum[:number]", "return self.curriculum[number - 1 : number]"),
    ),
    ("training/gradients/samples.py", RL): (
        ("if len(group.attempts) >= algorithm.min_attempts_per_task]", "if group.attempts]"),
        ("or config.entropy > 0 or", "or"),
        ("config.entropy > 0 or in_loss", "config.entropy > 0"),
        ("return coefficient * (estimate_K", "return config.kl.coefficient * (estimate_K"),
        ("kl_estimate(old.old_K, old.reference_K", "kl_estimate(old.sampler_K, old.reference_K"),
        ("has_gradient=has_gradient and len(sample.advantages_K) > 0", "has_gradient=len(sample.advantages_K) > 0"),
        ("has_gradient = always or any(", "has_gradient = always or all("),
        ('lengths = [len(old.old_K)] if importance.level == "sequence" else None', "lengths = None"),
        ("truncated_weights(old.old_K, old.sampler_K,", "truncated_weights(old.sampler_K, old.old_K,"),
        ('random.Random(f"{seed}/{epoch}")', 'random.Random(f"{seed}")'),
        (
            "len(order) * part // count : len(order) * (part + 1) // count",
            "part * (len(order) // count) : (part + 1) * (len(order) // count)",
        ),
    ),
    ("training/gradients/samples.py", (BRUTE, "test_asynchronous.py")): (
        ("[(version, tokens) for version, tokens in runs if tokens]", "list(runs)"),
        ("yield from (sampled == version for", "yield from (sampled <= version for"),
    ),
    ("training/gradients/update.py", RL): (
        ("scores.entropy_M.sum() / tokens", "scores.entropy_M.mean()"),
        ("loss = loss - networks.config.entropy", "loss = loss + networks.config.entropy"),
        ("estimate_M.sum() / tokens", "estimate_M.mean()"),
        ("loss + networks.kl_coefficient * estimate_M", "loss + kl.coefficient * estimate_M"),
        ("            denominator=tokens,", "            denominator=float(len(values_M)),"),
        ("            clip=critic_config.value_clip,", "            clip=None,"),
        ("        loss = loss + critic.loss\n", ""),
        (
            "samples = [sample for group in groups for sample in group if sample.has_gradient]",
            "samples = [sample for group in groups for sample in group if len(sample.advantages_K)]",
        ),
        ("    if recomputes or step.first:", "    if True:"),
        ("sampled_by(t, step.begun)", "sampled_by(t, step.version)"),
        ("old_M if recomputes else scores.logprobs_M, sampler_M", "scores.logprobs_M, sampler_M"),
        ("        weights_M=gathered(lambda x: x.weights_K),", "        weights_M=None,"),
        ("        old_logprobs_M=old_M,", "        old_logprobs_M=sampler_M,"),
        ("scores = networks.scores(pack, frozen=step.frozen)", "scores = networks.scores(pack)"),
        ("            values_M,\n            returns_M,", "            returns_M,\n            values_M,"),
        ("return bool(samples)", "return True"),
        ("        self.largest_difference = largest\n", ""),
    ),
    ("training/gradients/actor_critic.py", ("test_scores.py", *RL)): (
        ("            temperature=self.config.temperature,\n", "            temperature=1.0,\n"),
        ("            packed=self.config.packed,\n", "            packed=True,\n"),
        ('entropy = "gradient" if self.config.entropy and not frozen else "value"', 'entropy = "value"'),
        ("whole=self.config.algorithm.needs_whole_trajectories", "whole=False"),
        ('["old_K"] * recomputes + [', '["old_K"] + ['),
        ("return self.reference.coefficient.item() if", "return self.config.kl.coefficient if"),
        ("self._score(self.reference.model, pack)", "self._score(self.policy, pack)"),
        ("held_MD + self.value_grad_scale * (states_MD - held_MD)", "held_MD + (states_MD - held_MD)"),
        ("        if self.trunk is None:\n", "        if True:\n"),
        ("float(errors_M.mean()", "float(errors_M.sum()"),
        ("        self.head.bias.add_(shift)\n", ""),
        ("nn.init.zeros_(self.head.weight)", "pass"),
        ("self.coefficient.fill_(adapted(now,", "(adapted(now,"),
        ("horizon=horizon))", "horizon=1.0))"),
        ("placement.copied(policy).requires_grad_(False)", "policy"),
        ("values_K=values_K + shift", "values_K=values_K"),
        ("sample.returns_K - sample.old.values_K\n", "sample.returns_K\n"),
    ),
    ("training/logprobs.py", LOGPROBS): (
        (
            "head_columns(model, found.states_ND, found.targets_N, temperature, entropy)",
            "head_columns(model, found.states_ND, found.targets_N, 1.0, entropy)",
        ),
        (
            "return columns(out.logits[0, rows], targets, temperature, entropy)",
            "return columns(out.logits[0, rows], targets, 1.0, entropy)",
        ),
        ('both_M[:, 1] if entropy == "gradient" else', 'both_M[:, 0] if entropy == "gradient" else'),
        ("states[0][0, rows]", "states[0][0, rows].flip(0)"),
        ("slice(out.logits.shape[1] - length, None)", "slice(-length, None)"),
        ("ids.shape[1] - len(turn.completion_ids) :]", "-len(turn.completion_ids) :]"),
        ("[ids[:-1] if turn.completion_ids else ids]", "[ids]"),
        ("/ temperature\n    logprobs_V", "* temperature\n    logprobs_V"),
        (
            "-(logprobs_V.exp() * logprobs_V).sum(-1, keepdim=True)",
            "-(logprobs_V.exp().detach() * logprobs_V).sum(-1, keepdim=True)",
        ),
        ("torch.special.entr(logprobs_V.detach().exp())", "torch.special.entr(torch.softmax(logits.detach(), -1))"),
        ("tree.parent[nodes].to(device)", "nodes.to(device)"),
        ('temperature, "none")[found.repeat_M, 0]', 'temperature, "none")[:, 0]'),
        ("rows = max(1, LOGITS_AT_ONCE // head.out_features)", "rows = 10**9"),
    ),
    ("training/ranks/optimizers.py", ("test_ranks.py", BRUTE, "test_rl_algorithms.py")): (
        ("betas=(BETAS[0], beta2)", "betas=(BETAS[0], 0.999)"),
        ('"weight_decay": 0.0}]', '"weight_decay": 0.01}]'),
        (
            "clip_grads_with_norm_(self.parameters, max_grad_norm, norm)",
            "clip_grads_with_norm_(self.parameters, 1.0, norm)",
        ),
        ('group["lr"] = rate * scale', 'group["lr"] = rate'),
        ("optimizer.zero_grad(set_to_none=True)", "pass"),
        ("return min(1.0, (step + 1) / steps)", "return min(1.0, step / steps)"),
        ("max(0.05, left)", "max(0.5, left)"),
        ("left = (steps - step) / (decay * steps)", "left = (steps - step - 1) / (decay * steps)"),
        ("lr=adam_rate, betas=BETAS", "lr=adam_rate, betas=(0.9, 0.99)"),
        ("if p.ndim == 2 and id(p) not in embeddings]", "if p.ndim == 2]"),
    ),
    ("training/loop/recorded.py", ("test_sft.py",)): (
        ("for name in glob(pattern, recursive=True) if Path(name).is_file()", "for name in [pattern]"),
        ("drop_cut_line=True)", "drop_cut_line=False)"),
        ("attempt.reward < least", "attempt.reward <= least"),
        ("self.encoded_anew += self.encodes or not sampled", "self.encoded_anew += not sampled"),
        ("== turn.text", "!= ''"),
        ("if sampled and framed else", "if sampled else"),
        ("requested = old.action if old.prefilled else None", "requested = None"),
        ("completion = old.completion_ids if sampled else", "completion = old.completion_ids if False else"),
        ("unknown is not None and any(", "unknown is not None and all("),
        ("== (turn.action, turn.state)", "== (turn.action, parsed.state)"),
    ),
    ("training/loop/rl.py", RL): (
        ("max_grad_norm=self.config.max_grad_norm))\n        if", "max_grad_norm=1.0))\n        if"),
        (
            "critic_norms.append(self._critic.step(scale=scale, max_grad_norm=self.config.max_grad_norm))",
            "critic_norms.append(self._critic.step(scale=scale))",
        ),
        ("            self.networks.reference.adapt(kl)", "            pass"),
        ("samples_by_group = self.networks.centre_critic(made)", "samples_by_group = made"),
        (
            "kl_coefficient=self.networks.kl_coefficient)",
            "kl_coefficient=self.config.kl.coefficient if self.config.kl else 0.0)",
        ),
        ("begun + (0 if warming else number)", "begun"),
        ("first=number == 0,", "first=True,"),
        ("epochs=self.config.epochs,", "epochs=1,"),
        ("float(bool(scorable) and not stats.updates)", "0.0"),
        ('"skipped_too_few": float(not scorable)', '"skipped_too_few": 0.0'),
        ("staleness(trained, step.version)", "staleness(trained, step.begun)"),
    ),
    ("training/loop/group_sampling.py", ("test_schedule.py",)): (
        ("name = self.config.context(step)", "name = self.config.context(0)"),
        ("self._rollout(step), sampling", "self.rollout, sampling"),
    ),
    ("training/loop/recipe.py", ("test_schedule.py",)): (
        ("check_vocabulary(context_policy(name), vocabulary", "(lambda *a, **k: 0)(context_policy(name), vocabulary"),
    ),
    ("training/loop/group_sampling.py", RL): (
        (
            "missing -= Counter(task.objectives for task, group in pairs if has_variance(group))",
            "missing -= Counter(task.objectives for task, group in pairs)",
        ),
        ("+ step + draw * DRAW", "+ step + draw"),
        ("+ step + draw * DRAW", "+ step"),
        ("            groups += drawn", "            groups = drawn"),
        ("range(self.config.algorithm.draws)", "range(4)"),
    ),
    ("training/gradients/pack_workers.py", ("test_ranks.py", BRUTE)): (
        ("return loss * one.weight, stats", "return loss, stats"),
        ("zip(passes, found, strict=True) if one.weight]", "zip(passes, found, strict=True)]"),
        ("for number in sorted(by_pack)]", "for number in by_pack]"),
        ("Pass(order[-1], weight=0.0)", "Pass(order[-1])"),
        ("Pass(order[-1], weight=0.0)", "Pass(order[0], weight=0.0)"),
        ("key=lambda i: (-costs[i], i)", "key=lambda i: (costs[i], i)"),
        ("int((pack.tree.position_ids + 1).sum())", "len(pack.tree)"),
        ("else parameter.grad.add_(gradient)", "else gradient"),
    ),
    ("training/weights/checkpoint.py", ("test_checkpoint.py",)): (
        ("        if successor.exists():\n            remove_listed(old)", "        remove_listed(successor)"),
        ("        for old in _complete(folder)[:-KEPT]:", "        for old in _complete(folder)[: -KEPT - 1]:"),
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
    ("training/loop/rl.py", (*RL, "test_asynchronous.py")): (
        ("found[version - sampled] += tokens", "found[version - sampled] += 1"),
        ('kl_estimate(old_M, reference_M, "k3")', 'kl_estimate(old_M, reference_M, "k2")'),
        ("sums.loss / max(self.updates, 1)", "sums.loss"),
        ("sum(sample.capped for sample in samples) / tokens", "sum(sample.capped for sample in samples)"),
    ),
    ("training/loop/attempt_metrics.py", RL): (
        ("scorable = [t for t in trajectories if t.ended.scorable]", "scorable = list(trajectories)"),
    ),
    ("training/loop/train.py", ("test_training.py",)): (("record >= reward", "record > reward"),),
    ("contexts/assembly.py", ("test_contexts.py", "test_rollout.py")): (
        ("    for a, b in reversed(_dropped(kept)):", "    for a, b in _dropped(kept):"),
        ("        if kept.result and kept.turn.observation_ids:", "        if kept.turn.observation_ids:"),
        ("dropped = [_between(spans[role], spans) for role in forgotten if role in spans]", "dropped = []"),
        ("        if stop - start > kept.state_tokens:", "        if stop - start >= kept.state_tokens - 1:"),
        ("return turn.prefill_ids + ids if turn.action == SUMMARY else ids", "return ids"),
        ("return {role: (a, b) for role, (a, b) in roles.items() if b > a}", "return roles"),
    ),
    ("contexts/assembly.py", ("test_notes.py",)): (
        ("    if kept.only_notes is not None:\n        return tuple", "    if False:\n        return tuple"),
        ('yield role.partition(" ")[0], (start, stop)', "yield role, (start, stop)"),
    ),
    ("contexts/notes.py", ("test_notes.py",)): (
        ("    entries.pop(key, None)\n", ""),
        ("    if note.value:\n        entries[key] = entry", "    entries[key] = entry"),
        ("key = note.key or object()", "key = note.key"),
        ("        if rewritten:\n            entries.clear()\n", ""),
        ("labelled or entries.values()", "entries.values()"),
        ("for number, turn in enumerate(turns, first):", "for number, turn in enumerate(turns):"),
    ),
    ("contexts/recall.py", ("test_recall.py",)): (
        ("if one.result}", "if True}"),
        (" and id(turn) not in in_sight\n", "\n"),
        ("key=lambda i: (scores[i], i))", "key=lambda i: (scores[i], -i))"),
        ("    if not any(set(asked) & set(of_one) for of_one in words):\n        return None\n", ""),
        ("without_hint(turn.observation).strip())", "turn.observation)"),
        ("        if (id(turns[number - 1]), p) not in in_sight\n", ""),
        ("if kept.only_notes is None else kept.only_notes", ""),
        ("standing(turns, first=1)", "standing(turns)"),
        ("sorted([*results, *notes], key=lambda dropped: dropped.turn)", "[*notes, *results]"),
        ('asked.strip().rstrip(":").lower(), ', ""),
        (", read_note(asked).key.lower()", ""),
    ),
    ("contexts/policies.py", ("test_notes.py",)): (
        ("for i, of_it in notes.items() if i < last]", "for i, of_it in notes.items()]"),
        ("and written > self.tokens", "and written >= self.tokens"),
        ("written[-self.k :]", "written[-self.k - 1 :]"),
        ("if i < len(earlier) for position", "for position"),
        ("standing(turns)\n        written", "standing(earlier)\n        written"),
        ("self.tokens is not None and turns[-1].notes and", "self.tokens is not None and"),
        ("state_tokens=self.tokens, result=False", "result=False"),
        ("written + sum(b - a for a, b in note_spans(turns[last], notes.get(last, ())))", "written"),
        ("        return stop - start, self.tokens", "        return stop - start + 1, self.tokens"),
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
    ("contexts/policies.py", ("test_belief.py",)): (
        ("last = Kept(turn=newest, state_tokens=0)", "last = Kept(turn=newest)"),
        ("keep(earlier[-1:]).kept", "keep(earlier[-2:]).kept"),
        ("        if newest.action == SUMMARY:\n            return keep([newest])\n", ""),
    ),
    ("contexts/__init__.py", ("test_contexts.py",)): (("None if own is None else own(turns)", "None"),),
    ("tasks/atlas/expert.py", ("test_belief.py", "test_notes.py")): (
        ("relations=self.relations[self.relations.index(relation) :]", "relations=self.relations"),
        ("        if start != self.start or relation", "        if relation"),
        ("writes_none = self.tags.thought is not None or context", "writes_none = context"),
        (
            'writes_none = self.tags.thought is not None or context.rstrip().endswith(f"<{SUMMARY}>")',
            "writes_none = True",
        ),
        ("        if not query:  # the memory", "        if False:  # the memory"),
        ("turns[-1].content.split()[-1:] == [DONE]", "not turns"),
        ("turns[-1].content.split()[-1:] == [DONE]", "turns[-1].content"),
        ('<{self._state}> {state} </{self._state}>" if note else ""', '<{self._state}> {state} </{self._state}>"'),
        ('return f"<{thought}> {note}</{thought}> ', 'return f"'),
    ),
    ("evaluation/fact_retention.py", ("test_belief.py",)): (
        ("if turn.state or notes or summary else None", "if turn.state or notes else None"),
        ("summary = turn.content if turn.action == SUMMARY else summary", 'summary = ""'),
        ("[turn.state, *standing]", "[turn.state]"),
    ),
    ("planning/stages.py", ("test_belief.py",)): (
        ("            turns.append(_summary(", "            _ = (_summary("),
    ),
    ("dialogue/tagged.py", ("test_verification.py",)): (("        if tags.thought:", "        if False:"),),
    ("dialogue/tagged.py", ("test_rollout.py",)): (
        ("{r: (max(a - len(opening), 0), b - len(opening)) for", "{r: (a, b) for"),
        ("b - len(opening)) for", "b) for"),
        ("parsed = parse(opening + text, self.tags)", "parsed = parse(text, self.tags)"),
    ),
    ("dialogue/base.py", ("test_rollout.py",)): (
        ("        prefilled=requested is not None,", "        prefilled=False,"),
    ),
    ("dialogue/native.py", ("test_native_dialogue.py",)): (
        ("return () if self._keeping else self.messages.opened_ids", "return self.messages.opened_ids"),
        ("if not text.endswith(self.stop_strings):", "if False:"),
        ("if len(wanted) == 1 and not wanted[0].error:", "if len(wanted) == 1:"),
        ('role = "tool" if shown.turn.calls else "user"', 'role = "tool"'),
    ),
    ("engines/chat_messages.py", ("test_chat_messages.py",)): (
        ("return text.removeprefix(self.end) if self.end and", "return text if self.end and"),
        ("            content = self.calls.harmless(content)", "            pass"),
        ("            return break_tokens(value, self._breakable)", "            return value"),
        ('if self.thoughts == "drop" or "thought" not in said.spans:', 'if "thought" not in said.spans:'),
        ("return head + self.opened_ids if opened and", "return head if opened and"),
    ),
    ("rollout.py", ("test_rollout.py", "test_native_dialogue.py")): (
        ("                    if kind != RECALL and not error:", "                    if kind != RECALL:"),
        ("for place in range(max(map(len, wanted), default=0)):", "for place in range(1):"),
        ("attempt.turns_left == 1\n", "attempt.turns_left <= 2\n"),
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
            "return sum(stop - start for start, stop in spans) if spans else None",
            "return sum(stop - start + 1 for start, stop in spans) if spans else None",
        ),
        ("one[start : start + _BLOCK] != other[start : start + _BLOCK]", "one[start] != other[start]"),
    ),
    ("evaluation/tokens.py", ("test_cost.py", "test_metrics.py", "test_shapes.py")): (
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
        ("_words(without_hint(turn.observation))", "_words(turn.observation)"),
    ),
    ("evaluation/metrics.py", ("test_metrics.py", "test_mutants.py")): (
        ("return len(queries) - len(set(queries))", "return len(set(queries))"),
        ("[t.seconds for t in trajectories], 95)", "[t.seconds for t in trajectories], 90)"),
        ("solved_per_task = objectives * _mean(em)", "solved_per_task = _mean(em)"),
        ('trajectory.per_objective("em") or (0.0,) * len(depths)', 'trajectory.per_objective("em")'),
    ),
    ("scoring.py", ("test_scoring.py", "test_labels.py")): (
        ("common = sum((Counter(predicted) & Counter(gold)).values())", "common = len(set(predicted) & set(gold))"),
        ("answers.setdefault(int(match[1]), piece", "answers.__setitem__(int(match[1]), piece"),
        ("labels[position], piece", "position + 1, piece"),
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
