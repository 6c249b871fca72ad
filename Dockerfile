# jaxppo in a container. Nothing but Python is needed: JAX brings CUDA, or the TPU's library, as packages.
#   docker build -t jaxppo .                                CPU
#   docker build -t jaxppo:gpu --build-arg EXTRA=gpu .      or gpu-cuda12, tpu: the extras of docs/install.md
#   docker run --gpus all -v jaxppo-outputs:/jaxppo/outputs jaxppo:gpu python -m jaxppo.train --dtype bfloat16
FROM python:3.12-slim-bookworm

ARG EXTRA=""

RUN useradd --create-home --uid 1000 jaxppo && install -d -o jaxppo /jaxppo /jaxppo/outputs
WORKDIR /jaxppo
COPY --chown=1000:1000 . .
RUN pip install --no-cache-dir -e ".${EXTRA:+[$EXTRA]}"

USER 1000
CMD ["python", "-m", "jaxppo.train"]
