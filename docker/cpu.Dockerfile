# The command mem1 on a CPU, with everything that needs no GPU.
#   docker build -f docker/cpu.Dockerfile -t mem1:cpu .
#   docker run --rm -v "$PWD/runs:/work/runs" mem1:cpu quickstart
FROM python:3.12-slim

ENV OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=3000 PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY recipes recipes
RUN pip install --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt '.[train,parquet,documents,web]' \
    && useradd --uid 10001 --create-home mem1 && install -d -o 10001 /work

USER 10001
WORKDIR /work
ENTRYPOINT ["mem1"]
CMD ["--help"]
