# The command mem1 on NVIDIA GPUs: pip's build of torch brings CUDA's libraries, the host brings the driver.
#   docker build -f docker/cuda.Dockerfile -t mem1:cuda .
#   docker run --rm --gpus all --shm-size 8g -v "$PWD:/work" mem1:cuda train recipes/qwen3-1.7b-lora/train.toml
FROM nvidia/cuda:12.8.1-devel-ubuntu24.04

ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 PATH=/opt/mem1/bin:$PATH
# the versions of packages that are Ubuntu's own follow the image
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-dev python3-venv build-essential \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
COPY recipes recipes
RUN python3 -m venv /opt/mem1 \
    && pip install -c constraints.txt '.[train,parquet,documents,web,lora,qlora]' \
    && useradd --uid 10001 --create-home mem1 && install -d -o 10001 /work

USER 10001
WORKDIR /work
ENTRYPOINT ["mem1"]
CMD ["--help"]
