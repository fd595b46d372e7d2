# docker build -t taglio . && docker run --rm taglio quickstart
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE constraints.txt ./
COPY src ./src
RUN python -m venv /opt/taglio \
    && /opt/taglio/bin/pip install --no-cache-dir -c constraints.txt ".[serve]"

FROM python:3.12-slim
COPY --from=build /opt/taglio /opt/taglio
ENV PATH=/opt/taglio/bin:$PATH
RUN useradd --create-home --uid 1000 taglio
USER 1000
WORKDIR /home/taglio
ENTRYPOINT ["taglio"]
CMD ["quickstart"]
