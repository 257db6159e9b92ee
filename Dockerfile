# docker build -t trinity .                                  a CPU; with --build-arg TORCH_INDEX=URL, the index of
#                                                            PyTorch's builds without CUDA, a tenth of the size
# docker build -t trinity:cuda --build-arg KIND=cuda .       NVIDIA GPUs, with vLLM and Ray
# docker run --rm -v "$PWD:/work" trinity quickstart
# docker run --rm --gpus all -v "$PWD:/work" trinity:cuda run --config run.yaml

FROM python:3.12-slim
# wget: KubeRay asks with it whether a pod is well.
RUN apt-get update \
  && apt-get install -y --no-install-recommends git build-essential wget \
  && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=0
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY trinity ./trinity
ARG KIND=cpu
ARG TORCH_INDEX=
RUN case "$KIND" in \
    cpu) extras=fast,studio ;; \
    cuda) extras=ray,vllm,studio ;; \
    *) echo "KIND is cpu or cuda, not $KIND" >&2; exit 1 ;; \
  esac \
  && if [ -n "$TORCH_INDEX" ]; then pip install "torch>=2.11,<2.14" --index-url "$TORCH_INDEX"; fi \
  && pip install ".[$extras]"
RUN useradd --create-home trinity
USER trinity
WORKDIR /work
ENTRYPOINT ["trinity"]
CMD ["--help"]
