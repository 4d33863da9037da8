"""Result files of the released MEM1 code, scored again (`mem1 report --from-mem1`)."""
