"""Negative controls: break one kernel of the CPU plug-in before it is installed. Only for tests.

``KIT_TEST_BREAK=full-mask`` lets every tree token see the whole tree; ``accept-all`` accepts the first child of every
node whatever the target says.
"""

import os

if os.environ.get("KIT_TEST_BREAK"):
    import torch

    from kit.sglang_plugin import tree_kernels

    build = tree_kernels.build_tree_kernel_efficient

    def full_mask(parents, selected, lens, mask, *rest):  # type: ignore[no-untyped-def]
        build(parents, selected, lens, mask, *rest)
        mask.fill_(True)

    def accept_all(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        target_predict,
        topk=-1,
    ):  # type: ignore[no-untyped-def]
        n = candidates.shape[1]
        for b in range(candidates.shape[0]):
            node, path = 0, [0]
            while len(path) < accept_index.shape[1] and int(retrieve_next_token[b, node]) >= 0:
                child = int(retrieve_next_token[b, node])
                predicts[b * n + node] = candidates[b, child].to(predicts.dtype)
                node = child
                path.append(node)
            predicts[b * n + node] = target_predict.reshape(-1)[b * n + node].to(predicts.dtype)
            accept_index[b, : len(path)] = torch.tensor(path, dtype=accept_index.dtype) + b * n
            accept_token_num[b] = len(path) - 1
        return predicts, accept_index, accept_token_num

    if os.environ["KIT_TEST_BREAK"] == "full-mask":
        tree_kernels.build_tree_kernel_efficient = full_mask
    else:
        tree_kernels.verify_tree_greedy_func = accept_all  # type: ignore[assignment]
